"""What dialogues are about: scenarios, prompts, referees, outcomes, scripted counterparts."""
