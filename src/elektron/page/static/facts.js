// Facts about the model, as people say them.

const element = id => document.getElementById(id);

export function describe(facts) {
  element("model-name").textContent = facts.name;
  element("model-about").textContent = facts.about;
  element("model-about").hidden = !facts.about;
  const rows = {
    Parameters: inMillions(facts.parameters),
    Layers: `${facts.layers}, ${facts.width} wide`,
    Vocabulary: `${facts.vocabulary.toLocaleString("en")} tokens`,
    Reads: `${facts.positions} tokens at once`,
    "Trained by": facts.objective,
    Calibrated: facts.calibration ? `yes, for words from ${Math.round(100 * facts.calibration.threshold)}%` : "no",
    Suggests: facts.suggests ? "yes, by its generator" : "no: it has no generator",
    ...(facts.licence && { Licence: facts.licence }),
  };
  element("facts").replaceChildren(...Object.entries(rows).map(row));
}

function inMillions(count) {
  return count < 1e6 ? count.toLocaleString("en") : `${(count / 1e6).toFixed(1)} million`;
}

function row([name, value]) {
  const pair = document.createElement("div");
  const [term, told] = ["dt", "dd"].map(kind => document.createElement(kind));
  [term.textContent, told.textContent] = [name, value];
  pair.append(term, told);
  return pair;
}
