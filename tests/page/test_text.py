"""The page's own arithmetic of places, where it runs: in the browser."""

import random


def points_and_edits(count: int) -> list[list[list[int]]]:
    """Texts of all kinds of characters, as code points, each with one that an edit made of it."""
    draw = random.Random(7)
    letters = [*map(ord, "ab c\n.,"), 0x5E9, 0x301, 0xD83D, 0xDE00, 0x1F600, 0x1D49C, 0]
    pairs = []
    for _ in range(count):
        text = draw.choices(letters, k=draw.randint(0, 24))
        start, stop = sorted((draw.randint(0, len(text)), draw.randint(0, len(text))))
        pairs.append([text, text[:start] + draw.choices(letters, k=draw.randint(0, 4)) + text[stop:]])
    return pairs


def test_offsets_and_edits(visit, address):
    """Code points to UTF-16 units and back, and words that an edit leaves alone, for texts of all kinds."""
    page = visit(address)
    script = """async pairs => {
      const { asRecord, keptWords, pointsBefore, unitsOfPoints, wordsInUnits } = await import("./text.js");
      const made = points => points.map(point => String.fromCodePoint(point)).join("");
      const troubles = [];
      for (const [one, other] of pairs) {
        const before = made(one), after = made(other), points = [...before], places = unitsOfPoints(before);
        let unit = 0;
        points.forEach((point, n) => {
          if (places[n] !== unit || pointsBefore(before, unit) !== n) troubles.push([before, n]);
          unit += point.length;
        });
        if (places[points.length] !== before.length) troubles.push([before, "end"]);
        const words = [];
        points.forEach((point, n) => {
          if (/\\s/.test(point)) return;
          const last = words.at(-1);
          if (last?.stop === n) last.stop++;
          else words.push({ start: n, stop: n + 1, replaced: n });
        });
        const inUnits = wordsInUnits(before, words);
        const told = asRecord(before, inUnits, 0.5, new Map()).words;
        words.forEach((word, n) => {
          const { text, start, stop } = told[n], piece = points.slice(word.start, word.stop).join("");
          if (text !== piece || start !== word.start || stop !== word.stop) troubles.push([before, n]);
        });
        let end = 0;
        for (const word of keptWords(inUnits, before, after)) {
          const old = inUnits.find(other => other.replaced === word.replaced);
          if (before.slice(old.start, old.stop) !== after.slice(word.start, word.stop)) troubles.push([before, after]);
          if (word.start < end) troubles.push([before, after, "overlap"]);
          const around = [after[word.start - 1] ?? " ", after[word.stop] ?? " "];
          if (!around.every(one => /\\s/.test(one))) troubles.push([before, after, "another word"]);
          end = word.stop;
        }
      }
      return troubles.map(trouble => JSON.stringify(trouble));
    }"""
    assert page.evaluate(script, points_and_edits(3000)) == []
