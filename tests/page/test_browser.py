"""The page in a real browser: Debian's Chromium, driven by Playwright."""

import io
import json
import re

import httpx
import numpy as np
import pytest
from PIL import Image, ImageFilter

from elektron.page.doors import Doors
from elektron.page.terms import Limits

TEXT = "The old cat sees a dog.\nThe quiet king remembers a house, and the young bird hears a fish."
HARD = (
    "A tab\tand\ttabs, two  spaces   three\n\n"
    "\U0001f600\U0001f600 emoji \U0001f469\u200d\U0001f692 cat \U0001d49c dog\n"
    "שלום לכולם the cat מה שלומך\nمرحبا bird\nAVAToWay fi ffl cafe\u0301 "
    + "unbroken" * 40
    + " the old cat sees a dog "
    + "and the bird hears a fish. " * 12
    + "\n "
)


def until(page, condition: str) -> None:
    """Playwright's own waiting evaluates strings in the page, which the page's policy forbids."""
    for _ in range(750):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(20)
    raise AssertionError(condition)


def judged(address: str, text: str, threshold: float = 0.8) -> tuple[list[dict], list[str]]:
    """What the API says of a text: all words, and the marked ones as they stand in it."""
    body = json.dumps({"text": text}).encode()
    answer = httpx.post(f"{address}/api/detect", content=body, headers={"Content-Type": "application/json"})
    words = answer.json()["words"]
    return words, [text[word["start"] : word["stop"]] for word in words if word["replaced"] >= threshold]


def shaded(page) -> list[str]:
    return page.eval_on_selector_all(".mirror .flagged", "spans => spans.map(span => span.textContent)")


def write(page, text: str) -> None:
    """Put a text into the field and wait until it is read."""
    with page.expect_response("**/api/detect") as answer:
        page.fill("#text", text)
    answer.value.finished()
    until(page, "document.getElementById('summary').textContent !== ''")


def read(page, text: str, words: list[dict]) -> None:
    """Wait until all that was typed is read."""
    whole = json.dumps(text + "\n")
    until(page, f"document.getElementById('mirror').textContent === {whole}")
    until(page, f"document.querySelectorAll('.mirror span').length === {len(words)}")


def test_typing_is_seen_as_shading(visit, address):
    page = visit(address)
    page.keyboard.type("The old cat sees a dog.", delay=15)
    words, marked = judged(address, "The old cat sees a dog.")
    assert 0 < len(marked) < 7
    read(page, "The old cat sees a dog.", words)
    assert shaded(page) == marked
    assert page.inner_text("#summary").startswith(f"{len(marked)} of 7 words look replaced")
    page.fill("#text", "")
    until(page, "document.querySelectorAll('.mirror span').length === 0")
    assert page.inner_text("#summary") == ""


@pytest.mark.parametrize("text", [TEXT, HARD, "a\r\nb \U0001f600 cat\x0b dog\u2028fish"])
def test_shading_is_where_the_api_says(visit, address, text):
    page = visit(address)
    write(page, text)
    text = page.input_value("#text")
    words, marked = judged(address, text)
    until(page, f"document.querySelectorAll('.mirror span').length === {len(words)}")
    assert shaded(page) == marked
    assert page.evaluate("document.getElementById('mirror').textContent") == text + "\n"


def picture(page) -> Image.Image:
    box = page.locator("#sheet").bounding_box()
    return Image.open(io.BytesIO(page.screenshot(clip=box, full_page=True))).convert("L")


def strays(one: Image.Image, other: Image.Image) -> int:
    """Pixels of ink in one picture that are more than one pixel away from any in the other."""
    near = np.asarray(other.filter(ImageFilter.MinFilter(3)))
    return int(((np.asarray(one) < 100) & (near > 200)).sum())


@pytest.mark.parametrize(("width", "zoom"), [(1100, 1), (700, 1), (360, 2), (500, 1.25)])
def test_field_and_mirror_lie_letter_on_letter(visit, address, width, zoom):
    """The same picture, whichever of the two has ink."""
    page = visit(address, viewport={"width": width, "height": 700}, device_scale_factor=zoom)
    write(page, HARD)
    page.evaluate("document.activeElement.blur()")
    style = "const s = new CSSStyleSheet(); s.replaceSync(css); document.adoptedStyleSheets = [s]"
    shared = ".mirror .flagged { background: none !important; box-shadow: none !important }"
    pictures = []
    for css in (".mirror { color: black } textarea { color: transparent }", "textarea { color: black }"):
        page.evaluate(f"css => {{ {style} }}", css + shared)
        pictures.append(picture(page))
    assert pictures[0].size == pictures[1].size
    assert (np.asarray(pictures[0]) < 100).sum() > 1000
    assert strays(*pictures) == strays(*reversed(pictures)) == 0


def test_what_is_not_touched_keeps_its_shade(visit, address):
    page = visit(address)
    write(page, TEXT)
    before = shaded(page)
    page.route("**/api/detect", lambda route: None)  # no answer will come
    page.evaluate("document.getElementById('text').setSelectionRange(3, 3)")
    page.keyboard.type(" big")
    kept = shaded(page)
    assert [word for word in before if word != "The"] == [word for word in kept if word != "The"]
    assert page.evaluate("document.getElementById('mirror').textContent").startswith("The big old cat")


def test_a_slow_server_is_asked_again(visit, serve, slow):
    """What is typed meanwhile is not lost, nor shaded by answers to something else."""
    address = serve(using=slow(1).detector)
    page = visit(address)
    for piece in ("The old cat", " sees", " a dog", "."):
        page.keyboard.type(piece)
        page.wait_for_timeout(500)
    _, marked = judged(address, "The old cat sees a dog.")
    until(page, f"document.querySelectorAll('.mirror span').length === 7 && {len(marked)} > 0")
    assert shaded(page) == marked


def flagged_word(page, number: int = 0):
    return page.locator(".mirror .flagged").nth(number)


def test_hovering_tells_and_a_click_takes(visit, address):
    page = visit(address)
    write(page, TEXT)
    words, marked = judged(address, TEXT)
    box = flagged_word(page).bounding_box()
    page.mouse.move(box["x"] + 3, box["y"] + 5)
    page.wait_for_selector("#others [role=option]")
    first = next(word for word in words if word["replaced"] >= 0.8)
    assert page.inner_text("#card-word") == marked[0]
    assert page.inner_text("#card-chance") == f"{round(100 * first['replaced'])}%"
    option = page.locator("[role=option]").nth(1)
    other = option.get_attribute("data-text")
    expected = TEXT[: first["start"]] + other + TEXT[first["stop"] :]
    option.click()
    assert page.input_value("#text") == expected
    assert page.is_hidden("#card")
    until(page, "document.getElementById('spoken').textContent !== ''")
    page.keyboard.press("Control+z")
    assert page.input_value("#text") == TEXT


def test_any_word_can_be_asked_for(visit, address):
    """Also one that is not marked; and the card goes away with the pointer."""
    page = visit(address)
    write(page, TEXT)
    box = page.locator(".mirror span:not(.flagged)").first.bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 4)
    page.wait_for_selector("#others [role=option]")
    assert "flagged" not in (page.get_attribute("#card", "class") or "")
    page.mouse.move(5, 5)
    page.wait_for_selector("#card", state="hidden")


def test_keys_alone(visit, address):
    page = visit(address)
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.type(TEXT)
    words, marked = judged(address, TEXT)
    read(page, TEXT, words)
    _, second = [word for word in words if word["replaced"] >= 0.8][:2]
    page.keyboard.press("Control+Home")
    page.keyboard.press("F8")
    page.wait_for_selector("#others [aria-selected=true]")
    assert page.inner_text("#card-word") == marked[0]
    page.keyboard.press("Control+.")
    until(page, f"document.getElementById('card-word').textContent === {json.dumps(marked[1])}")
    page.keyboard.press("Shift+F8")
    until(page, f"document.getElementById('card-word').textContent === {json.dumps(marked[0])}")
    page.keyboard.press("Escape")
    assert page.is_hidden("#card")
    assert page.input_value("#text") == TEXT
    page.keyboard.press("F8")
    until(page, f"document.getElementById('card-word').textContent === {json.dumps(marked[1])}")
    page.wait_for_selector("#others [aria-selected=true]")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    chosen = page.locator("#others [aria-selected=true]")
    assert chosen.get_attribute("id") == "other-1" == page.get_attribute("#text", "aria-activedescendant")
    other = chosen.get_attribute("data-text")
    page.keyboard.press("Enter")
    assert page.input_value("#text") == TEXT[: second["start"]] + other + TEXT[second["stop"] :]
    assert page.is_hidden("#card")
    reached = []
    for _ in range(8):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"previous", "next", "example", "copy", "threshold", "SUMMARY", "A"} <= set(reached)


def test_a_late_answer_leaves_the_choice_alone(visit, address):
    """The card is opened, left and opened again before the first answer is there, which comes when a word is chosen."""
    page, held = visit(address), []
    page.route("**/api/suggest", lambda route: route.continue_() if held else held.append(route))
    page.keyboard.type(TEXT)
    words, _ = judged(address, TEXT)
    read(page, TEXT, words)
    page.keyboard.press("Control+Home")
    page.keyboard.press("F8")
    until(page, "document.getElementById('card-said').textContent.startsWith('Asking')")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+Home")
    page.keyboard.press("F8")
    page.wait_for_selector("#others [aria-selected=true]")
    page.keyboard.press("ArrowDown")
    with page.expect_response("**/api/suggest"):
        held[0].continue_()
    page.wait_for_timeout(100)
    assert page.locator("#others [aria-selected=true]").get_attribute("id") == "other-1"


def test_a_caret_in_a_marked_word(visit, address):
    page = visit(address)
    write(page, TEXT)
    box = flagged_word(page).bounding_box()
    page.mouse.click(box["x"] + 3, box["y"] + 5)
    page.mouse.move(5, 5)
    page.wait_for_selector("#others [role=option]")
    page.keyboard.press("Escape")
    assert page.is_hidden("#card")


def test_the_slider_asks_nobody(visit, address):
    page = visit(address)
    write(page, TEXT)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    for value in (5, 95, 30):
        page.locator("#threshold").fill(str(value))
        assert shaded(page) == judged(address, TEXT, value / 100)[1]
        assert page.inner_text("#threshold-told") == f"{value}%"
    assert asked == []


def test_copying_as_json(visit, address):
    page = visit(address, permissions=["clipboard-read", "clipboard-write"])
    text = "The \U0001f600 old cat sees a dog."
    write(page, text)
    page.click("#copy")
    until(page, "document.getElementById('copy').textContent === 'Copied'")
    found = json.loads(page.evaluate("navigator.clipboard.readText()"))
    words, _ = judged(address, text)
    assert (found["text"], found["threshold"]) == (text, 0.8)
    assert [{name: word[name] for name in ("start", "stop", "replaced")} for word in found["words"]] == words
    assert all(word["text"] == text[word["start"] : word["stop"]] for word in found["words"])


def test_facts_and_the_example(visit, address):
    page = visit(address)
    assert page.inner_text("#model-name") == "untaught"
    assert "32 tokens at once" in page.inner_text("#facts")
    with page.expect_response("**/api/detect"):
        page.click("#example")
    page.wait_for_selector(".mirror span")
    assert page.input_value("#text").startswith("Amber is")
    page.click("footer a")
    page.wait_for_selector("text=POST /api/detect")


def test_a_server_that_is_gone_and_comes_back(visit, address):
    page = visit(address)
    page.context.set_offline(True)
    page.fill("#text", TEXT)
    told = "The server does not answer. Your text is safe here. Trying again in a second."
    until(page, f"document.getElementById('trouble').textContent === {json.dumps(told)}")
    page.context.set_offline(False)
    page.wait_for_selector("#trouble", state="hidden")
    page.wait_for_selector(".mirror .flagged")
    assert page.input_value("#text") == TEXT


def test_too_long_and_too_often(visit, serve, wound):
    page = visit(serve(Limits(characters=30, rate=1, burst=2)))
    page.fill("#text", "the cat " * 5)
    page.wait_for_selector("#trouble:visible")
    assert "This text has 40 characters; the server reads up to 30" in page.inner_text("#trouble")
    page.fill("#text", "the cat")
    page.wait_for_selector("#trouble", state="hidden")
    page.wait_for_selector(".mirror span")
    page.fill("#text", "the dog")
    until(page, "document.getElementById('trouble').textContent.startsWith('That was a little fast')")
    wound.now += 1
    page.wait_for_selector("#trouble", state="hidden")
    assert page.input_value("#text") == "the dog"


def test_a_token_comes_behind_the_number_sign(browser, serve):
    address = serve(doors=Doors("a-token-of-some-length", is_public=True))
    context = browser.new_context()
    page, asked = context.new_page(), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    page.wait_for_selector("#trouble:visible")
    assert "This server wants its token" in page.inner_text("#trouble")
    page.goto(f"{address}/#token=a-token-of-some-length")
    page.wait_for_selector("#facts div", state="attached")
    assert page.url == f"{address}/"
    page.reload()
    page.wait_for_selector("#facts div", state="attached")
    assert not [url for url in asked if "token" in url.split("#")[0]]
    context.close()


def test_a_narrow_screen(visit, address):
    page = visit(address, viewport={"width": 360, "height": 700}, has_touch=True, is_mobile=True)
    write(page, TEXT + " " + "unbroken" * 30)
    assert page.evaluate("document.scrollingElement.scrollWidth") == 360
    for number in range(2):
        page.click("#next")
        page.wait_for_selector("#others [role=option]")
        box = page.locator("#card").bounding_box()
        assert box["x"] >= 0, number
        assert box["x"] + box["width"] <= 360
    page.locator("[role=option]").first.tap()
    assert page.input_value("#text") != TEXT
    for button in page.locator("button").all():
        assert button.bounding_box()["height"] >= 40


def luminance(colour: str) -> float:
    parts = [int(float(part)) / 255 for part in re.findall(r"[\d.]+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_can_be_read(visit, address, scheme):
    page = visit(address, color_scheme=scheme)
    write(page, TEXT)
    colour = "([selector, name]) => getComputedStyle(document.querySelector(selector))[name]"
    paper, sheet = (page.evaluate(colour, [place, "backgroundColor"]) for place in ("body", "#sheet"))
    assert (luminance(paper) < 0.1) == (scheme == "dark")
    for place, ground in (
        *(("body", paper), ("footer", paper), (".quiet", paper), ("dt", paper), ("#summary", paper), ("a", paper)),
        *(("#text", sheet), ("button", sheet), ("output", paper)),
    ):
        assert contrast(page.evaluate(colour, [place, "color"]), ground) >= 4.5, place


def test_less_motion(visit, address):
    page = visit(address, reduced_motion="reduce")
    write(page, TEXT)
    page.keyboard.press("F8")
    page.wait_for_selector("#card:visible")
    assert page.evaluate("getComputedStyle(document.getElementById('card')).animationName") == "none"
