"""The page of public names lists them all, as they are: names, parameters, and what objects have."""

import importlib.util
import pathlib
import re

import devkernels
import devkernels.linear

ROOT = pathlib.Path(__file__).resolve().parents[2]


def script():
    spec = importlib.util.spec_from_file_location("make_api_page", ROOT / "scripts" / "make_api_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names(text):
    """What stands in code at the beginning of headings and list entries; sentences may be reworded freely."""
    return re.findall(r"^(?:### |- )`([^`]*)`", text, re.MULTILINE)


def test_the_page_is_up_to_date():
    made = script()
    assert names(made.PAGE.read_text()) == names(made.page()), "run: python scripts/make_api_page.py"


def test_every_public_name_has_its_entry_and_a_sentence():
    text = script().PAGE.read_text()
    for module in (devkernels, devkernels.linear):
        for name in set(module.__all__) - {"__version__"}:
            assert re.search(rf"^### `{module.__name__}\.{name}\b[^\n]*`\n\n\S", text, re.MULTILINE), name


def test_links_lead_somewhere():
    links = re.findall(r"^More in \[[^]]*\]\(([^)#]+)", script().PAGE.read_text(), re.MULTILINE)
    assert links
    for link in links:
        assert (ROOT / "docs" / link).exists(), link
