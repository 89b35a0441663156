"""Reports of runs: how the page behaves in a real browser."""

import math
from itertools import combinations, pairwise

import pytest
from tests.browser import browser, find_browser

from longtail.report.page import Column, Grid, templates
from longtail.study.figures.style import Drawing, new_figure

pytestmark = pytest.mark.skipif(
    find_browser() is None,
    reason="there is no Chromium or Chrome here (Debian: apt install chromium; LONGTAIL_BROWSER)",
)


@pytest.fixture(scope="module")
def file(made, tmp_path_factory):
    return made.write(tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def tab():
    with browser() as opened:
        yield opened


def write_page(path, main, **values):
    """A page with one part."""
    text = '{% extends "base.html" %}{% from "macros.html" import gallery, grid %}{% block main %}'
    page = templates().from_string(f"{text}{main}{{% endblock %}}")
    path.write_text(page.render(title="T", subtitle="", **values), encoding="utf-8")
    return path


LUMINANCE = """(() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map((v) => v / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (!colour.includes("rgba(0, 0, 0, 0)")) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  let worst = [99, ""];
  const all = "p, li, h1, h2, h3, td, th, dt, strong, a, button, figcaption, summary, code, .chip, svg text";
  for (const element of document.querySelectorAll(all)) {
    if (!element.textContent.trim() || element.className === "skip") continue;
    const style = getComputedStyle(element);
    const a = light(element.closest("svg") ? style.fill : style.color), b = light(behind(element));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, element.tagName + " " + element.textContent.trim().slice(0, 40)];
  }
  return worst;
})()"""


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1440, False)])
def test_page_is_readable_without_errors(tab, file, width, dark):
    page, complaints = tab
    page.size(width, dark=dark)
    page.open(file)
    page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.run("document.documentElement.scrollWidth") <= width
    ratio, where = page.run(LUMINANCE)
    assert ratio >= 4.5, where
    smallest = page.run(
        "Math.min(...[...document.querySelectorAll('svg text')].map((one) => parseFloat(getComputedStyle(one).fontSize)"
        " * one.ownerSVGElement.getBoundingClientRect().width / one.ownerSVGElement.viewBox.baseVal.width))"
    )
    assert smallest >= 8.0
    sizes = page.run("[...document.querySelectorAll('p, td, li')].map((one) => getComputedStyle(one).fontSize)")
    assert min(float(size.removesuffix("px")) for size in sizes) >= 13
    assert page.run("[...document.images].every((one) => one.complete && one.naturalWidth > 0)")
    ink = page.run("getComputedStyle(document.body).backgroundColor")
    assert (ink == "rgb(255, 255, 255)") != dark
    assert complaints == []


def focused(page):
    return page.run("document.activeElement.textContent.trim().slice(0, 60) || document.activeElement.id")


def test_page_is_usable_by_keyboard(tab, file):
    page, complaints = tab
    page.size(1440)
    page.open(file)
    page.press("Tab")
    assert focused(page) == "Skip to the report"
    assert page.run("document.activeElement.getBoundingClientRect().left") >= 0
    page.press("Enter")
    assert page.run("document.activeElement.id") == "content"
    page.press("Tab")  # the table's scrolling region, then its first column
    page.press("Tab")
    assert focused(page) == "Method"
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    column = "[...document.querySelectorAll('#d0-recall-table tbody tr')].map((row) => row.cells[4].dataset.v)"
    for _ in range(4):
        page.press("Tab")
    assert focused(page) == "All"
    page.press("Enter")
    values = [float(value) for value in page.run(column)]
    assert values == sorted(values, reverse=True)
    assert page.run("document.activeElement.parentElement.getAttribute('aria-sort')") == "descending"
    page.press(" ")
    values = [float(value) for value in page.run(column)]
    assert values == sorted(values)
    assert page.run("document.querySelectorAll('#d0-recall-table [aria-sort]').length") == 1
    for _ in range(7):  # the other table
        page.press("Tab")
    assert page.run("document.activeElement.tagName") == "SUMMARY"
    page.press("Enter")
    assert page.run("document.activeElement.parentElement.open")
    page.run("document.querySelector('#d0-classes-table-search').focus()")
    page.type("tail")
    assert page.run("document.querySelector('#d0-classes-table .found').textContent") == "4 of 10 rows"
    assert (
        page.run("[...document.querySelectorAll('#d0-classes-table tbody tr')].filter((row) => !row.hidden).length")
        == 4
    )
    assert complaints == []


SEEN = """[...document.querySelectorAll('#d0-recall-table thead th')]
  .every((cell) => cell.getBoundingClientRect().right <= innerWidth)"""


def test_wide_tables_scroll_on_a_phone(tab, file):
    page, _ = tab
    frame = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    page.size(390)
    page.open(file)
    page.run(frame)
    assert page.run(SEEN)
    assert page.run("document.querySelector('nav').classList.contains('more')")
    wide = "document.querySelector('#d0-classes-table .edge')"
    shade = f"getComputedStyle({wide}, '::after').opacity"
    hint = f"getComputedStyle({wide}.nextElementSibling).display"
    assert (page.run(shade), page.run(hint)) == ("1", "block")
    page.run(f"{wide}.firstElementChild.scrollLeft = 9999")
    page.run(frame)
    first = f"{wide}.querySelector('tbody th').getBoundingClientRect()"
    assert page.run(f"{first}.left >= 0 && {first}.width < 150")  # the class name stays visible
    assert (page.run(shade), page.run(hint)) == ("0", "block")
    page.size(1440)
    page.run(frame)
    assert page.run("document.querySelectorAll('.more, .wide').length") == 0


@pytest.mark.parametrize("width", [390, 1440])
def test_long_names_are_wrapped(tab, tmp_path, width):
    page, _ = tab
    name = "internationalization_of_things_without_any_space_between_them_at_all"
    rows = [(name, "a class whose name has words " * 3, f"{name} (20 %)")]
    grid = Grid("t", "T", [Column(column) for column in ("Class", "Taken for", "Then")], rows)
    page.size(width)
    page.open(write_page(tmp_path / "page.html", "{{ grid(one) }}", one=grid))
    assert page.run("document.querySelector('.scroll').scrollWidth <= document.querySelector('.scroll').clientWidth")
    assert page.run("document.querySelector('tbody th').getBoundingClientRect().height") > 30


@pytest.mark.parametrize(("number", "columns"), [(1, 1), (2, 2), (4, 2), (7, 3)])
def test_figures_fill_the_page_without_overlap(tab, tmp_path, number, columns):
    page, _ = tab
    heights = (200, 300, 200, 500, 250, 200, 300)
    pictures = {f"f{k}": f'<svg viewBox="0 0 300 {height}"></svg>' for k, height in enumerate(heights[:number])}
    drawings = {name: Drawing(name, "T", new_figure()[0], "A caption.") for name in pictures}
    main = "{{ gallery(drawings, drawings, pictures) }}"
    page.size(1440)
    page.open(write_page(tmp_path / "page.html", main, drawings=drawings, pictures=pictures))
    page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    boxes = page.run(
        "[...document.querySelectorAll('.gallery > figure')].map((one) => one.getBoundingClientRect())"
        ".map((box) => [box.left, box.top, box.right, box.bottom])"
    )
    assert len(boxes) == number
    assert len({round(box[0]) for box in boxes}) == columns
    inner = page.run("document.querySelector('.gallery').getBoundingClientRect().right")
    assert max(box[2] for box in boxes) == pytest.approx(inner, abs=10)
    for one, other in combinations(boxes, 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    for one, other in pairwise(sorted(boxes, key=lambda box: (box[0], box[1]))):
        assert one[0] != other[0] or 10 < other[1] - one[3] < 30  # no gap between two of a column


def test_text_and_missing_values_are_sorted(tab, tmp_path):
    page, _ = tab
    rows = [("b", 2.0), ("c10", math.nan), ("c9", ("10 ± 1", 10.0, True))]
    grid = Grid("t", "T", [Column("Name"), Column("Value", 1)], rows)
    page.open(write_page(tmp_path / "page.html", "{{ grid(one) }}", one=grid))
    names = "[...document.querySelectorAll('tbody th')].map((cell) => cell.textContent).join(' ')"
    page.run("document.querySelectorAll('thead button')[1].click()")
    assert page.run(names) == "c9 b c10"
    page.run("document.querySelectorAll('thead button')[1].click()")
    assert page.run(names) == "b c9 c10"  # missing values stay last
    page.run("document.querySelectorAll('thead button')[0].click()")
    assert page.run(names) == "b c9 c10"
    page.run("document.querySelectorAll('thead button')[0].click()")
    assert page.run(names) == "c10 c9 b"


def test_errors_and_requests_are_noticed(tab, tmp_path):
    page, complaints = tab
    (tmp_path / "bad.html").write_text(
        "<!doctype html><script>console.error('one')</script><script>throw new Error('two')</script>"
        "<img src='http://127.0.0.1:9/three.png'>"
    )
    page.open(tmp_path / "bad.html")
    page.run("1")
    seen = " ".join(complaints)
    complaints.clear()
    assert "one" in seen
    assert "Uncaught" in seen
    assert "requested http://127.0.0.1:9/three.png" in seen
