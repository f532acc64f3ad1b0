from tests.docs.loss_table import PAGE, page_with_table


def test_page_shows_the_audits_result_for_each_loss() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_with_table(), "run python -m tests.docs.loss_table"
