"""The pictures of the page in docs/, taken again with one command:

    python benchmarks/screenshots.py [--model FOLDER] [--text TEXT] [--threshold 0.5]

Debian's Chromium looks at the page in the light, in the dark and on a phone. Without --model it is the model that comes
with Elektron, without --text the page's own example.
"""

import argparse
import io
import shutil
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from served import server

_FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
_VIEWS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1120, "height": 720}, "color_scheme": "light", "device_scale_factor": 1.5},
    "dark": {"viewport": {"width": 1120, "height": 720}, "color_scheme": "dark", "device_scale_factor": 1.5},
    "narrow": {"viewport": {"width": 360, "height": 720}, "color_scheme": "light", "device_scale_factor": 2},
}


def prepared(browser: Browser, address: str, view: dict[str, Any], text: str, threshold: float) -> Page:
    """The page with a text in it, its most suspicious word asked for."""
    page = browser.new_context(**view).new_page()
    page.goto(address)
    page.wait_for_selector("#facts div", state="attached")
    page.locator("#threshold").fill(str(round(100 * threshold)))
    with page.expect_response("**/api/detect"):
        page.fill("#text", text) if text else page.click("#example")
    page.wait_for_selector(".mirror .flagged")
    heats = page.eval_on_selector_all(
        ".mirror .flagged", "spans => spans.map(span => Number(span.style.getPropertyValue('--heat')))"
    )
    page.evaluate("document.getElementById('text').setSelectionRange(0, 0)")
    for _ in range(heats.index(max(heats)) + 1):
        page.click("#next")
    page.wait_for_selector("#others [role=option]")
    page.mouse.move(2, 2)
    page.wait_for_timeout(400)
    return page


def save(picture: bytes, path: Path) -> None:
    """In few colours, which is all that the page has."""
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(255, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="")
    parser.add_argument("--text", default="")
    parser.add_argument("--threshold", type=float, default=0.5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs")
    options = parser.parse_args()
    with server(options.model) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=_FLAGS)
        for name, view in _VIEWS.items():
            page = prepared(browser, address, view, options.text, options.threshold)
            save(page.screenshot(), options.out / f"page-{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
