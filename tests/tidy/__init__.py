"""The house rules as code: allowed imports, pure files, banned constructs. `tests/test_tidy.py` applies them."""
