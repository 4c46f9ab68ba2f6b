// Places in a text, and what is known of its words while it changes. No page in here: functions of their arguments.

const PAIR = /[\ud800-\udbff][\udc00-\udfff]/;

// The server counts code points, strings here count UTF-16 units: where each code point begins, and where the last ends.
export function unitsOfPoints(text) {
  const places = new Uint32Array(text.length + 1);
  let point = 0;
  for (let unit = 0; unit < text.length; point++) {
    places[point] = unit;
    unit += text.codePointAt(unit) > 0xffff ? 2 : 1;
  }
  places[point] = text.length;
  return places.subarray(0, point + 1);
}

export function wordsInUnits(text, words) {
  if (!PAIR.test(text)) return words;
  const places = unitsOfPoints(text);
  return words.map(word => ({ ...word, start: places[word.start], stop: places[word.stop] }));
}

export function pointsBefore(text, unit) {
  let points = 0;
  for (let at = 0; at < unit; points++) at += text.codePointAt(at) > 0xffff ? 2 : 1;
  return points;
}

function pointsOfUnits(text) {
  const points = new Uint32Array(text.length + 1);
  unitsOfPoints(text).forEach((unit, point) => (points[unit] ||= point));
  return points;
}

// The words of `before` that an edit has left alone, where they stand in `after`. A word to which letters were added is
// another one.
export function keptWords(words, before, after) {
  if (before === after) return words;
  const most = Math.min(before.length, after.length);
  let head = 0, tail = 0;
  while (head < most && before[head] === after[head]) head++;
  while (tail < most - head && before[before.length - 1 - tail] === after[after.length - 1 - tail]) tail++;
  const end = before.length - tail, shift = after.length - before.length;
  const ends = place => place >= after.length || place < 0 || /\s/.test(after[place]);
  const kept = [];
  for (const word of words) {
    if (word.stop < head || (word.stop === head && ends(head))) kept.push(word);
    else if (word.start > end || (word.start === end && ends(end + shift - 1)))
      kept.push({ ...word, start: word.start + shift, stop: word.stop + shift });
  }
  return kept;
}

// What `elektron detect --json` prints of a text, offsets in code points; with the threshold, and suggestions for the
// words that were asked about.
export function asRecord(text, words, threshold, suggestions) {
  const points = pointsOfUnits(text);
  const told = words.map(word => {
    const others = suggestions.get(word.start);
    return {
      start: points[word.start],
      stop: points[word.stop],
      text: text.slice(word.start, word.stop),
      replaced: word.replaced,
      ...(others?.length ? { suggestions: others.map(other => [other.text, other.probability]) } : {}),
    };
  });
  return { text, threshold, words: told };
}
