// The card beside a word: how likely it was replaced, and what would be better.

const GAP = 6, EDGE = 8;
const element = id => document.getElementById(id);
const card = element("card"), others = element("others"), field = element("text");

export const percent = chance => (chance > 0 && chance < 0.005 ? "<1%" : `${Math.round(100 * chance)}%`);

export class Card {
  constructor(take, closed) {
    this.take = take;
    this.closed = closed;
    this.word = null;
    this.engaged = false; // whether arrow keys and Enter belong to the card
    this.choice = -1;
    others.addEventListener("pointerdown", event => event.preventDefault()); // the text keeps the focus
    others.addEventListener("click", event => {
      const option = event.target.closest("[role=option]");
      if (option) this.take(this.word, option.dataset.text);
    });
  }

  get isOpen() {
    return !card.hidden;
  }

  open(word, piece, boxOf, isFlagged, engaged) {
    this.word = word;
    this.engaged = engaged;
    element("card-word").textContent = piece;
    element("card-chance").textContent = percent(word.replaced);
    element("card-meter").style.width = `${100 * word.replaced}%`;
    card.classList.toggle("flagged", isFlagged);
    this.boxOf = boxOf;
    this.list(null, "Asking for other words…");
    card.hidden = false;
    this.place();
  }

  close() {
    card.hidden = true;
    this.word = null;
    this.engaged = false;
    this.choose(-1);
    this.closed();
  }

  // Suggestions, or why there are none.
  list(suggestions, said) {
    others.replaceChildren(...(suggestions ?? []).map(optionOf));
    element("card-said").textContent = said;
    element("card-said").hidden = !said;
    this.choose(this.engaged && suggestions?.length ? 0 : -1);
    if (this.isOpen) this.place();
  }

  choose(number) {
    const options = [...others.children];
    this.choice = options.length && number >= 0 ? (number + options.length) % options.length : -1;
    options.forEach((option, n) => option.setAttribute("aria-selected", n === this.choice));
    if (this.choice >= 0) field.setAttribute("aria-activedescendant", options[this.choice].id);
    else field.removeAttribute("aria-activedescendant");
  }

  move(step) {
    this.choose(this.choice < 0 ? (step > 0 ? 0 : others.children.length - 1) : this.choice + step + others.children.length);
  }

  takeChosen() {
    const option = others.children[this.choice];
    if (option) this.take(this.word, option.dataset.text);
    return Boolean(option);
  }

  // Below the word, or above it where there is more room; never out of sight.
  place() {
    const { offsetWidth: width, offsetHeight: height } = card, seen = document.documentElement, box = this.boxOf();
    if (!box) return;
    const below = box.bottom + GAP, above = box.top - GAP - height;
    const top = below + height > seen.clientHeight - EDGE && above > EDGE ? above : below;
    const right = element("sheet").getBoundingClientRect().right - EDGE; // beside the text, not over what stands there
    const left = Math.max(EDGE, Math.min(box.left - 14, right - width));
    card.style.left = `${left + scrollX}px`;
    card.style.top = `${top + scrollY}px`;
  }
}

function optionOf(suggestion, number) {
  const option = document.createElement("div"), chance = document.createElement("span");
  option.id = `other-${number}`;
  option.dataset.text = suggestion.text;
  option.setAttribute("role", "option");
  option.append(suggestion.text, " ", chance);
  chance.textContent = percent(suggestion.probability);
  return option;
}
