// The page: a text, what the server says of its words, and what a person does about it.

import { Card, percent } from "./card.js";
import { describe } from "./facts.js";
import { ask, inWords } from "./server.js";
import { asRecord, keptWords, pointsBefore, wordsInUnits } from "./text.js";

const QUIET = 120; // milliseconds between a key and a question
const PATIENCE = 800; // after which a question about an older text is given up
const LONGEST_WAIT = 16; // seconds between two tries
const FACTS_WAIT = 4; // seconds until the model is asked for again
const COUNT = 5; // suggestions for a word
const BARS = 25;
const EXAMPLE =
  "Amber is the resin of ancient trees, hardened over millions of years. The Greeks called it elektron. They had " +
  "noticed that a piece of it, rubbed with wool, could attracted feathers and straw, and nobody new why.\n\n" +
  "Two thousand years later a English doctor gave the effect its name: electricity. He believe that many " +
  "other substances would behave the same banana, and he was right.";

const element = id => document.getElementById(id);
const field = element("text"), mirror = element("mirror"), slider = element("threshold");
const last = mirror.appendChild(document.createTextNode("\n")); // what stands behind the last word

let text = ""; // as it stands in the field
let words = []; // what is known of it: start, stop (UTF-16 units), replaced
let drawn = []; // the words as they stand in the mirror under the field
let openings = 0; // of the card: an answer to an earlier one must not disturb what is chosen by now
let suggestions = new Map(); // of words, by where they start in `text`
let facts = null;
let threshold = 0.5;
let lastInput = 0;

// Reading: one question at a time, the next when its answer is there.

let timer = 0, due = 0, pending = null, since = 0, tries = 0;

function readLater(wait) {
  const when = performance.now() + wait;
  if (timer && due <= when) return;
  clearTimeout(timer);
  [timer, due] = [setTimeout(read, wait), when];
}

async function read() {
  timer = 0;
  if (pending && performance.now() - since < PATIENCE) return; // asked again when the answer is there
  pending?.abort();
  const asked = text, mine = (pending = new AbortController());
  since = performance.now();
  try {
    const found = asked.trim() ? await answered(asked, mine.signal) : [];
    words = keptWords(found, asked, text);
    tries = 0;
    complain("");
    draw();
    sayLater(1200);
  } catch (error) {
    if (error.name === "AbortError") return;
    failed(error);
  } finally {
    if (pending === mine) pending = null;
  }
  if (text !== asked) readLater(0);
}

async function answered(asked, signal) {
  const most = facts?.characters ?? Infinity;
  if (asked.length > most && pointsBefore(asked, asked.length) > most) throw tooLong(asked, most);
  return wordsInUnits(asked, (await ask("api/detect", { text: asked }, signal)).words);
}

function tooLong(asked, most) {
  const has = pointsBefore(asked, asked.length).toLocaleString("en");
  const message = `This text has ${has} characters; the server reads up to ${most.toLocaleString("en")}. Shorten it a little.`;
  return Object.assign(new Error(message), { status: 413, passes: false });
}

function failed(error) {
  if (error.status === undefined) throw error;
  const seconds = error.passes ? error.waitSeconds || Math.min(2 ** tries++, LONGEST_WAIT) : 0;
  complain(inWords(error, seconds));
  if (seconds) readLater(1000 * seconds);
}

function complain(sentence) {
  element("trouble").textContent = sentence;
  element("trouble").hidden = !sentence;
  element("sheet").classList.toggle("troubled", Boolean(sentence));
}

// Drawing: the mirror holds the same text under the field, with something behind its words.

// Each word has a text node with what stands before it, and a span. Those that an edit leaves alone are left alone here
// too, so that the browser has little to lay out again.
function draw() {
  const wanted = words.map((word, n) => ({
    before: text.slice(n ? words[n - 1].stop : 0, word.start),
    piece: text.slice(word.start, word.stop),
  }));
  const isSame = (one, other) => one.before === other.before && one.piece === other.piece;
  const most = Math.min(wanted.length, drawn.length);
  let head = 0, tail = 0;
  while (head < most && isSame(wanted[head], drawn[head])) head++;
  while (tail < most - head && isSame(wanted.at(-1 - tail), drawn.at(-1 - tail))) tail++;
  const fresh = wanted.slice(head, wanted.length - tail).map(made);
  for (const old of drawn.splice(head, drawn.length - head - tail, ...fresh)) old.nodes.forEach(node => node.remove());
  const after = drawn[head + fresh.length]?.nodes[0] ?? last;
  after.before(...fresh.flatMap(part => part.nodes));
  last.data = `${text.slice(words.at(-1)?.stop ?? 0)}\n`; // a last line that is empty has its height too
  clearTimeout(hovering);
  hovered = UNKNOWN;
  shade();
}

function made(part) {
  const span = document.createElement("span");
  span.textContent = part.piece;
  return { ...part, span, nodes: [document.createTextNode(part.before), span], heat: "" };
}

const isFlagged = word => word.replaced >= threshold;

function shade() {
  const bars = new Array(BARS).fill(0);
  words.forEach((word, n) => {
    bars[Math.min(BARS - 1, Math.floor(word.replaced * BARS))]++;
    const heat = isFlagged(word) ? word.replaced.toFixed(2) : "";
    if (heat === drawn[n].heat) return;
    drawn[n].heat = heat;
    drawn[n].span.classList.toggle("flagged", Boolean(heat));
    drawn[n].span.style.setProperty("--heat", heat);
  });
  const flagged = words.filter(isFlagged).length;
  element("summary").textContent = summary(flagged);
  for (const id of ["previous", "next"]) element(id).disabled = !flagged;
  element("copy").disabled = !words.length;
  drawBars(bars);
  ring();
}

function summary(flagged) {
  if (!words.length) return "";
  const all = `${words.length} word${words.length === 1 ? "" : "s"}`;
  return flagged ? `${flagged} of ${all} look${flagged === 1 ? "s" : ""} replaced` : `Nothing stands out in ${all}`;
}

function drawBars(bars) {
  const most = Math.max(1, ...bars), width = 100 / BARS;
  element("histogram").replaceChildren(
    ...bars.map((count, n) => {
      const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      const height = count ? 2 + 28 * Math.sqrt(count / most) : 0.5;
      const place = { x: n * width + 0.4, y: 30 - height, width: width - 0.8, height };
      for (const [name, value] of Object.entries(place)) bar.setAttribute(name, value);
      bar.setAttribute("class", (n + 1) / BARS > threshold ? "above" : "");
      return bar;
    }),
  );
}

let speaking = 0;

function sayLater(wait, sentence = "") {
  clearTimeout(speaking);
  speaking = setTimeout(() => (element("spoken").textContent = sentence || element("summary").textContent), wait);
}

// The card: opened by the pointer, by the caret, or by keys, which then belong to it.

const card = new Card(take, ring);
let openedBy = "", ringed = null;

// Around the word that the card is of.
function ring() {
  ringed?.classList.remove("current");
  ringed = card.word && drawn[words.findIndex(word => word.start === card.word.start)]?.span;
  ringed?.classList.add("current");
  element("sheet").classList.toggle("choosing", card.engaged);
}

function boxOf(start, x, y) {
  const number = words.findIndex(word => word.start === start);
  const boxes = number < 0 ? [] : [...drawn[number].span.getClientRects()];
  return boxes.find(box => x >= box.left && x <= box.right && y >= box.top && y <= box.bottom) ?? boxes[0];
}

async function show(number, by, x = NaN, y = NaN) {
  const word = words[number], asked = text, mine = ++openings;
  openedBy = by;
  card.open(word, text.slice(word.start, word.stop), () => boxOf(word.start, x, y), isFlagged(word), by === "keys");
  ring();
  let others = facts?.suggests === false ? [] : suggestions.get(word.start), said = "";
  try {
    others ??= await better(asked, word);
    if (!others.length) said = facts?.suggests === false ? "This model has no generator." : "Nothing better comes to mind.";
  } catch (error) {
    if (error.status === undefined) throw error;
    said = error.status === 422 ? "Still reading; try again in a moment." : inWords(error, 0);
  }
  if (text !== asked || card.word?.start !== word.start || mine !== openings) return;
  card.list(others, said);
  if (by === "keys") sayLater(0, spoken(word, others ?? []));
}

async function better(asked, word) {
  const question = { text: asked, words: [pointsBefore(asked, word.start)], count: COUNT };
  const others = (await ask("api/suggest", question)).words[0].suggestions;
  if (text === asked) suggestions.set(word.start, others);
  return others;
}

function spoken(word, others) {
  const piece = text.slice(word.start, word.stop);
  const better = others.length ? ` Suggestions: ${others.map(other => other.text).join(", ")}.` : "";
  return `${piece}, ${percent(word.replaced)}.${better}`;
}

// As if typed, so that it can be undone.
function replace(start, stop, other) {
  field.focus();
  field.setSelectionRange(start, stop);
  if (document.execCommand("insertText", false, other)) return;
  field.setRangeText(other, start, stop, "end");
  field.dispatchEvent(new InputEvent("input"));
}

function take(word, other) {
  const piece = text.slice(word.start, word.stop);
  replace(word.start, word.stop, other);
  sayLater(0, `${piece} is now ${other}.`);
}

function go(step) {
  const flagged = words.flatMap((word, n) => (isFlagged(word) ? [n] : []));
  if (!flagged.length) return;
  const { selectionStart: from, selectionEnd: to } = field;
  const isAfter = n => words[n].start > from || (from === to && words[n].start === from);
  const ahead = flagged.filter(n => (step > 0 ? isAfter(n) : words[n].start < from));
  const number = step > 0 ? ahead[0] ?? flagged[0] : ahead.at(-1) ?? flagged.at(-1);
  field.focus({ preventScroll: true });
  field.setSelectionRange(words[number].start, words[number].stop);
  drawn[number].span.scrollIntoView({ block: "nearest" });
  show(number, "keys");
}

// What a person does.

field.addEventListener("input", () => {
  const after = field.value;
  lastInput = performance.now();
  words = keptWords(words, text, after);
  text = after;
  suggestions = new Map();
  card.close();
  draw();
  readLater(QUIET);
});

field.addEventListener("keydown", event => {
  if (event.isComposing) return;
  const isNext = event.key === "F8" || ((event.ctrlKey || event.metaKey) && event.code === "Period");
  const isCards = card.isOpen && card.engaged;
  if (isNext) go(event.shiftKey ? -1 : 1);
  else if (isCards && event.key === "ArrowDown") card.move(1);
  else if (isCards && event.key === "ArrowUp") card.move(-1);
  else if (isCards && event.key === "Enter" && card.takeChosen()) card.close();
  else if (card.isOpen && event.key === "Escape") card.close();
  else return;
  event.preventDefault();
});

const NONE = -1, UNKNOWN = -2;
let hovering = 0, hovered = NONE; // the number of the word under the pointer

function hover(number, x, y) {
  if (number === hovered) return;
  clearTimeout(hovering);
  hovered = number;
  hovering = setTimeout(() => {
    if (number >= 0 && !card.engaged) show(number, "hover", x, y);
    else if (number < 0 && openedBy === "hover") card.close();
  }, number < 0 ? 220 : 90); // milliseconds; enough to reach the card
}

field.addEventListener("pointermove", event => {
  if (event.pointerType !== "mouse" || event.buttons) return;
  const span = document.elementsFromPoint(event.clientX, event.clientY).find(found => found.parentNode === mirror);
  hover(drawn.findIndex(part => part.span === span), event.clientX, event.clientY);
});
field.addEventListener("pointerleave", () => hover(NONE));
element("card").addEventListener("pointerenter", () => clearTimeout(hovering));
element("card").addEventListener("pointerleave", () => {
  hovered = UNKNOWN;
  hover(NONE);
});

let resting = 0;

function wordAtCaret() {
  const { selectionStart: from, selectionEnd: to } = field;
  return from === to ? words.findIndex(word => isFlagged(word) && word.start <= from && from <= word.stop) : NONE;
}

document.addEventListener("selectionchange", () => {
  clearTimeout(resting);
  if (document.activeElement !== field || performance.now() - lastInput < 100) return;
  if (openedBy === "keys" && card.word?.start === field.selectionStart && card.word.stop === field.selectionEnd) return;
  const number = wordAtCaret();
  if (number >= 0 && card.word?.start === words[number].start) return;
  if (openedBy !== "hover") card.close();
  resting = setTimeout(() => wordAtCaret() >= 0 && show(wordAtCaret(), "caret"), 200);
});

field.addEventListener("blur", () => openedBy !== "hover" && card.close());
addEventListener("resize", () => card.isOpen && card.place());

slider.addEventListener("input", () => {
  threshold = slider.value / 100;
  tellThreshold();
  shade();
  sayLater(600);
});

function tellThreshold() {
  element("threshold-told").textContent = percent(threshold);
  slider.setAttribute("aria-valuetext", percent(threshold));
}

element("previous").addEventListener("click", () => go(-1));
element("next").addEventListener("click", () => go(1));
element("example").addEventListener("click", () => {
  replace(0, text.length, EXAMPLE);
  field.setSelectionRange(0, 0);
});

element("copy").addEventListener("click", async () => {
  const record = JSON.stringify(asRecord(text, words, threshold, suggestions), null, 2);
  const is = await copied(record);
  element("copy").textContent = is ? "Copied" : "Could not copy";
  sayLater(0, is ? "Copied as JSON." : "Could not copy.");
  setTimeout(() => (element("copy").textContent = "Copy as JSON"), 1600);
});

async function copied(record) {
  try {
    await navigator.clipboard.writeText(record);
    return true;
  } catch {
    return false;
  }
}

async function begin() {
  draw();
  try {
    facts = await ask("api/model");
    threshold = facts.threshold;
    slider.value = Math.round(100 * threshold);
    describe(facts);
  } catch (error) {
    if (error.status === undefined) throw error;
    complain(inWords(error, error.passes ? FACTS_WAIT : 0));
    if (error.passes) setTimeout(begin, 1000 * FACTS_WAIT);
  }
  tellThreshold();
  if (field.value !== text) field.dispatchEvent(new InputEvent("input")); // what the browser has kept of a visit before
}

begin();
