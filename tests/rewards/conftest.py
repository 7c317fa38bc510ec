"""The scripted server of the endpoints' tests, for judges behind an endpoint."""

from tests.endpoints.conftest import make_settings as make_settings
from tests.endpoints.conftest import serve as serve
