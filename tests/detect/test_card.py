"""The model card beside a saved detector: what it promises and how it was made, and no text of a user's breaks out."""

import json
import re

import pytest
import yaml

import wildood
from wildood.detect.card import code_span
from wildood.models.small import MLP

NASTY = "a`b``c|*d*[x](y)<script>\n---\n# e\u202e\udcff{{ 1 }}"


def card_of(detector, place):
    return (detector.save(place) / "README.md").read_text(encoding="utf-8")


def split_card(text):
    """The metadata, and the text below it."""
    _, head, body = re.split(r"^---$\n", text, maxsplit=2, flags=re.MULTILINE)
    return yaml.safe_load(head), body


def test_the_card_says_what_is_promised_what_was_measured_and_of_which_data(fits, tmp_path):
    detector = fits["woods-alt"]
    head, body = split_card(card_of(detector, tmp_path))
    assert re.fullmatch("[0-9a-f]{64}", head.pop("wildood_card"))
    assert head == {"library_name": "wildood", "tags": ["wildood", "out-of-distribution-detection"]}
    plain = body.replace("\\", "")
    record = detector.record
    start, kept = detector.history[0]["accuracy"], detector.history[record["kept_epoch"]]["accuracy"]
    benefit = record["assessment"]["benefit"]
    for part in (
        f"- **promise:** {detector.promise}\n",
        f"- **assumes:** {detector.promise.assumption}\n",
        f"- **accuracy:** {100 * kept:.1f} %; of the starting classifier {100 * start:.1f} %\n",
        f"trained {100 * benefit['trained']:.1f} %, start {100 * benefit['start']:.1f} %",
        "the trained detector is deployed",
        "- **method:** WoodsAlt: alpha 0.05",
        f"- **versions:** wildood {wildood.__version__}, torch ",
        *(f"- **{name}:** `{fingerprint}`\n" for name, fingerprint in record["data"].items()),
        'detector = wildood.load("detector/")  #',
        json.loads((tmp_path / "detector.json").read_text())["weights"],
    ):
        assert part in plain, part


def test_warnings_come_first(woods, tmp_path):
    woods.record["assessment"] = {"start_kept": True, "warnings": ["training was not shown to help: <b>"]}
    _, body = split_card(card_of(woods, tmp_path))
    headings = re.findall("^## (.*)$", body, re.MULTILINE)
    assert headings[:2] == ["Warnings", "What it promises"]
    assert "“unknown”\n\n## Warnings\n\n- training was not shown to help: \\<b\\>\n" in body
    woods.record["assessment"] = {"start_kept": False, "warnings": []}
    assert "Warnings" not in card_of(woods, tmp_path)


def test_a_posthoc_detector_without_a_promise_has_a_card(toy, tmp_path):
    detector = wildood.posthoc(MLP(2, 3), wildood.MaxSoftmax(), holdout=toy.holdout)
    detector.promise = None
    body = card_of(detector, tmp_path)
    assert "- **promise:** none: not calibrated\n" in body
    assert "What the fit measured" not in body


def test_images_and_a_model_of_ones_own_are_said(image_detector, toy, tmp_path):
    head, _ = split_card(card_of(image_detector, tmp_path / "images"))
    assert head["pipeline_tag"] == "image-classification"

    class Own(MLP):
        pass

    detector = wildood.posthoc(Own(2, 3), wildood.EnergyScore(), holdout=toy.holdout, forward=lambda model, x: model(x))
    body = card_of(detector, tmp_path / "own")
    assert '.load("detector/", model=model, forward=forward)' in body
    assert "`test_images_and_a_model_of_ones_own_are_said.<locals>.Own`" in body


def test_no_text_of_a_user_breaks_out(woods, tmp_path):
    woods.record["classes"] = [NASTY, "plain"]
    woods.record["not_by_class"] = NASTY
    woods.record["data"] = {"labelled": NASTY}
    head, body = split_card(card_of(woods, tmp_path))
    assert set(head) == {"library_name", "wildood_card", "tags"}
    assert body.count("\n# ") == 1
    assert not re.search(r"^(---|#+ e)", body, re.MULTILINE)
    shown = "a`b``c|*d*[x](y)<script> --- # e\\u202e\\udcff{{ 1 }}"
    assert f"- **classes:** ``` {shown} ```, `plain`\n" in body
    assert f"- **labelled:** ``` {shown} ```\n" in body
    assert "`" not in (escaped := next(line for line in body.splitlines() if "by class" in line)).replace("\\`", "")
    assert "<script>" not in escaped.replace("\\<script\\>", "")
    assert wildood.load(tmp_path).record["classes"][0] == NASTY.encode("utf-8", "surrogateescape").decode(
        "utf-8", "surrogateescape"
    )


@pytest.mark.parametrize(("text", "span"), [("a", "`a`"), ("`", "`` ` ``"), ("a``b`", "``` a``b` ```"), ("", "`  `")])
def test_a_code_span_has_a_longer_fence_than_what_is_in_it(text, span):
    assert code_span(text) == span


def test_a_card_is_replaced_and_an_edited_one_or_another_readme_is_not(fits, tmp_path):
    first = card_of(fits["woods"], tmp_path)
    assert card_of(fits["woods-alt"], tmp_path) != first
    edited = card_of(fits["woods-alt"], tmp_path).replace("## How it was made", "## Licence\n\nMIT\n\n## How it was made")
    (tmp_path / "README.md").write_text(edited, encoding="utf-8")
    assert card_of(fits["woods"], tmp_path) == edited
    (tmp_path / "README.md").write_text("# My project\n")
    assert card_of(fits["woods"], tmp_path) == "# My project\n"
    (tmp_path / "README.md").unlink()
    (tmp_path / "README.md").mkdir()
    fits["woods"].save(tmp_path)
    assert (tmp_path / "README.md").is_dir()


def test_a_directory_without_a_card_loads_and_a_changed_card_is_never_read(woods, toy, tmp_path):
    woods.save(tmp_path)
    for change in (lambda card: card.write_bytes(b"\xff{{ 1 / 0 }}"), lambda card: card.unlink()):
        change(tmp_path / "README.md")
        assert (wildood.load(tmp_path).score(toy.test[0]) == woods.score(toy.test[0])).all()
