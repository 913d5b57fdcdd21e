"""A page as a tree, read strictly: what a browser would mend in silence is an error here."""

import html
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

import pytest

VOID = {"meta", "img", "br", "hr", "link", "input"}  # elements without an end tag


@dataclass
class Element:
    """One element: its attributes, and its children and texts in their order."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    content: list["Element | str"] = field(default_factory=list)

    def all(self, tag=None, **attributes):
        """Every element in it with this tag and these attributes, in document order; `cls` is the class."""
        wanted = {name.replace("cls", "class").replace("_", "-"): value for name, value in attributes.items()}
        found = []
        for child in self.content:
            if isinstance(child, Element):
                if tag in {None, child.tag} and wanted.items() <= child.attributes.items():
                    found.append(child)
                found += child.all(tag, **attributes)
        return found

    def one(self, tag=None, **attributes):
        (found,) = self.all(tag, **attributes)
        return found

    @property
    def text(self):
        return "".join(child if isinstance(child, str) else child.text for child in self.content)

    def panel(self, title):
        """The panel whose heading begins so."""
        (found,) = (panel for panel in self.all("div", cls="panel") if panel.one("h3").text.startswith(title))
        return found

    def rows(self):
        """The cells of the one table in it, by the name of their row."""
        body = self.one("tbody").all("tr")
        return {row.one("th").text: [cell.text for cell in row.all("td")] for row in body}

    def references(self):
        """The ids that something in it refers to."""
        values = [value for element in self.all() for value in element.attributes.values()]
        links = [
            element.attributes[name]
            for element in self.all()
            for name in ("href", "xlink:href")
            if name in element.attributes
        ]
        return {link.removeprefix("#") for link in links} | set(re.findall(r"url\(#([^)]*)\)", " ".join(values)))

    def ids(self):
        return [element.attributes["id"] for element in self.all() if "id" in element.attributes]


class Reader(HTMLParser):
    """Builds the tree; refuses a tag that is not closed, closed twice or closed out of order."""

    def __init__(self):
        super().__init__(convert_charrefs=False)
        self.open = [Element("document")]

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"an attribute is there twice: <{tag} {attrs}>"
        element = Element(tag, dict(attrs))
        self.open[-1].content.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open[-1].tag == tag, f"</{tag}> where <{self.open[-1].tag}> is open"
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].content.append(data)

    def handle_entityref(self, name):
        self.open[-1].content.append(html.unescape(f"&{name};"))

    def handle_charref(self, name):
        self.open[-1].content.append(html.unescape(f"&#{name};"))


@pytest.fixture(scope="session")
def parse():
    """A function from HTML to its tree."""

    def parsed(text):
        reader = Reader()
        reader.feed(text)
        reader.close()
        assert [element.tag for element in reader.open] == ["document"]
        return reader.open[0]

    return parsed
