from helpers.mistaken_runs import write_runs
from swad.testbed.results.figures.confusion import confusion_figure
from swad.testbed.results.mistakes import shown_predictions
from swad.testbed.results.runs import find_runs
from swad.testbed.results.selection import collect_results


def test_the_figure_shows_every_share_and_names_verbatim(tmp_path):
    (results,) = collect_results(find_runs(write_runs(tmp_path)))
    shown = shown_predictions(results)
    (axes,) = confusion_figure(shown).axes
    numbers = {(text.get_position()[1] - 0.5, text.get_position()[0] - 0.5): text.get_text() for text in axes.texts}
    for row in range(3):
        for column in range(3):
            share = shown.shares.iat[row, column]
            assert numbers.get((row, column), "0") == f"{share:.0f}"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["<b>melanoma</b>", "keratosis", r"nevus \$"]
