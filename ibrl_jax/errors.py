"""The one kind of error that is a user's to mend."""


class UserError(Exception):
    """Bad input, in one sentence: what is wrong, where, and what would be right.

    Entry points print the sentence and exit with code 2; no traceback is shown.
    """
