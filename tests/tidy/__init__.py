"""The house rules as code: who may import whom, what is pure, what is banned. `tests/test_tidy.py` applies them."""
