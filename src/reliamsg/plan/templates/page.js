// The page of `reliamsg plan --page`: draws what model.js computes from the inputs.

const FILE = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

const LAYOUTS = {
  "wide-map": {
    size: [960, 330],
    box: [124, 36],
    widths: { "declared missing": 148 },
    places: {
      accepted: [70, 50], durable: [234, 50], "in memory": [234, 50], queued: [398, 50], received: [562, 50],
      delivered: [726, 50], acknowledged: [890, 50], "declared missing": [318, 170], erased: [480, 170],
      lost: [480, 290], duplicated: [890, 170],
    },
    paths: {
      "accepted start": ["M132 50 H172", 152, 36],
      "start queued": ["M296 50 H336", 316, 36],
      "start lost": ["M234 68 V290 H418", 234, 235],
      "queued received": ["M460 50 H500", 480, 36],
      "queued erased": ["M398 68 C398 110 450 110 464 152", 395, 108],
      "erased received": ["M500 152 C510 110 536 110 540 68", 562, 118],
      "erased declared missing": ["M418 170 H392", 405, 205],
      "erased lost": ["M480 188 V272", 480, 235],
      "received lost": ["M600 68 V290 H542", 600, 235],
      "received delivered": ["M624 50 H664", 644, 36],
      "delivered acknowledged": ["M788 50 H828", 808, 36],
      "acknowledged duplicated": ["M890 68 V152", 890, 115],
    },
  },
  narrow: {
    size: [358, 640],
    box: [118, 34],
    widths: { "declared missing": 148 },
    places: {
      accepted: [66, 24], durable: [66, 108], "in memory": [66, 108], queued: [66, 192], received: [66, 372],
      delivered: [66, 456], acknowledged: [66, 540], "declared missing": [244, 222], erased: [190, 300],
      lost: [280, 372], duplicated: [66, 622],
    },
    paths: {
      "accepted start": ["M66 41 V91", 66, 71],
      "start queued": ["M66 125 V175", 66, 155],
      "start lost": ["M125 108 H334 V355", 240, 113],
      "queued received": ["M50 209 V355", 50, 300],
      "queued erased": ["M100 209 C100 250 130 270 150 283", 120, 250],
      "erased received": ["M140 317 C120 330 110 340 100 355", 128, 345],
      "erased declared missing": ["M205 283 V239", 215, 265],
      "erased lost": ["M249 300 C285 300 290 320 290 355", 285, 315],
      "received lost": ["M125 372 H221", 176, 392],
      "received delivered": ["M66 389 V439", 66, 419],
      "delivered acknowledged": ["M66 473 V523", 66, 503],
      "acknowledged duplicated": ["M66 557 V605", 66, 587],
    },
  },
};
const BAD = new Set(["lost", "declared missing", "duplicated"]);

const CHOICES = {
  release: ["confirmed", "consumed"],
  on_gap: ["hold", "raise", "skip"],
};
const SETTINGS = ["release", "confirm", "on_gap", "gap_timeout", "retain_seconds", "retain_bytes", "max_bytes"];

let rates = structuredClone(FILE.rates);
let client = structuredClone(FILE.client);
let shown = 0;

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawing(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

const percent = (share) => `${general(100 * share, 5)} %`;
// Logarithms of probabilities from 1e-15 to 1 as 0 to 1.
const scaled = (probability) => Math.min(1, Math.max(0, 1 + Math.log10(probability) / 15));

// -- results -------------------------------------------------------------------------------------------------------

function showResults(own) {
  const { fate } = own;
  const rows = [
    ["lost, per message", general(fate.lost)],
    ["declared missing, per message", general(fate.declared)],
    ["delivered again, per message", general(fate.duplicated)],
    ["lost or declared, per year", general(own.lost_per_year)],
    ["delivered again, per year", general(own.duplicated_per_year)],
    ["publishing possible", percent(fate.accepting)],
    ["confirm policy can be met", percent(fate.confirming)],
    ["delivery possible", percent(fate.delivering)],
    ["confirmed after, on average", `${general(fate.confirm_seconds)} s`],
  ];
  document.getElementById("client").textContent = own.name;
  document.getElementById("results").replaceChildren(...rows.map(([label, value]) =>
    element("div", {}, element("dt", {}, label), element("dd", {}, value))));
}

function drawMap(name, layout, fate) {
  const [width, height] = layout.size;
  const picture = drawing("svg", { class: name, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-labelledby": "map-title" });
  const marks = drawing("defs");
  for (const kind of ["", "bad", "never"]) {
    const marker = drawing("marker", { id: `${name}-${kind || "good"}`, class: kind, viewBox: "0 0 8 8", refX: 7, refY: 4,
      markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" });
    marker.append(drawing("path", { d: "M0 0 L8 4 L0 8 z" }));
    marks.append(marker);
  }
  picture.append(marks);
  const labels = [];
  for (const [from, to, probability] of fate.edges) {
    const start = (state) => (state === "durable" || state === "in memory" ? "start" : state);
    const [path, x, y] = layout.paths[`${start(from)} ${start(to)}`];
    const kind = !probability ? "never" : BAD.has(to) ? "bad" : "";
    picture.append(drawing("path", { d: path, class: kind, "stroke-width": 1 + 5 * (probability ? scaled(probability) : 0),
      "marker-end": `url(#${name}-${kind || "good"})` }));
    labels.push(drawing("text", { x, y, class: `probability ${kind}`, "data-edge": `${from} -> ${to}` },
      general(probability)));
  }
  const [usualWidth, boxHeight] = layout.box;
  const states = new Set(fate.edges.flatMap(([from, to]) => [from, to]));
  for (const state of states) {
    const [x, y] = layout.places[state];
    const boxWidth = layout.widths[state] ?? usualWidth;
    picture.append(
      drawing("rect", { x: x - boxWidth / 2, y: y - boxHeight / 2, width: boxWidth, height: boxHeight, rx: 6,
        class: BAD.has(state) ? "bad" : "" }),
      drawing("text", { x, y: y + 5 }, state));
  }
  picture.append(...labels);
  return picture;
}

function showMap(plan) {
  const all = [plan.client, ...plan.compared];
  const select = document.getElementById("shown");
  select.replaceChildren(...all.map(({ name }, index) =>
    element("option", { value: index }, index ? name : `this client: ${name}`)));
  shown = Math.min(shown, all.length - 1);
  select.value = shown;
  const { fate } = all[shown];
  document.getElementById("map").replaceChildren(
    ...Object.entries(LAYOUTS).map(([name, layout]) => drawMap(name, layout, fate)));
  document.getElementById("confirmed").textContent = "When the message was due at the consumer, it was at " +
    fate.confirmed.map(([sites, probability]) =>
      `${sites} site${sites === 1 ? "" : "s"} with probability ${general(probability)}`).join(", at ") +
    ". Erased: at no site that the consumer reaches.";
}

function bar(probability) {
  const picture = drawing("svg", { viewBox: "0 0 150 16", preserveAspectRatio: "none", "aria-hidden": "true" });
  for (let power = 0; power <= 15; power += 3) {
    picture.append(drawing("line", { x1: 150 - 10 * power, x2: 150 - 10 * power, y1: 0, y2: 16 }));
  }
  if (probability) picture.append(drawing("rect", { x: 0, y: 3, width: 150 * scaled(probability), height: 10 }));
  return picture;
}

function showCompared(plan) {
  const head = element("thead", {}, element("tr", {}, ...[["client", ""], ["1e-15 to 1", "bar"], ["lost", "n"],
    ["per year", "n"], ["again", "n"], ["publishing", "n"], ["confirmed", "n"]]
    .map(([text, kind]) => element("th", { scope: "col", class: kind }, text))));
  const rows = plan.compared.map((one) => element("tr", { class: one.name === plan.client.name ? "own" : "" },
    element("th", { scope: "row" }, one.name),
    element("td", { class: "bar" }, bar(one.fate.missing)),
    ...[general(one.fate.missing, 2), general(one.lost_per_year, 2), general(one.fate.duplicated, 2),
      percent(one.fate.accepting), `${general(one.fate.confirm_seconds, 2)} s`]
      .map((text) => element("td", { class: "n" }, text))));
  document.getElementById("compared").replaceChildren(head, element("tbody", {}, ...rows));
}

function showInfluences(fate) {
  const head = element("thead", {}, element("tr", {}, ...[["number", ""], ["value", "n"], ["loss grows by", "n"],
    ["messages per incident", "n"]].map(([text, kind]) => element("th", { scope: "col", class: kind }, text))));
  const rows = influences(rates, client, fate).filter((one) => one.elasticity).slice(0, 8).map((one) =>
    element("tr", {},
      element("th", { scope: "row" }, one.name),
      ...[general(one.value), `${one.elasticity.toFixed(3)} %`,
        one.lost_per_incident === null ? "" : general(one.lost_per_incident)]
        .map((text) => element("td", { class: "n" }, text))));
  if (!rows.length) rows.push(element("tr", {}, element("td", { colspan: 4 }, "Nothing: the loss is exactly 0.")));
  document.getElementById("influences").replaceChildren(head, element("tbody", {}, ...rows));
}

// -- the numbers as TOML -------------------------------------------------------------------------------------------

function showToml() {
  const lines = [];
  const key = (name) => (/^[A-Za-z0-9_-]+$/.test(name) ? name : JSON.stringify(name));
  const value = (found) => (typeof found === "number" ? tomlNumber(found) : JSON.stringify(found));
  const table = (path, content) => {
    lines.push(`[${path.map(key).join(".")}]`);
    for (const [name, found] of Object.entries(content)) {
      if (typeof found !== "object") lines.push(`${name} = ${value(found)}`);
    }
    lines.push("");
    for (const [name, found] of Object.entries(content)) {
      if (found !== null && typeof found === "object") table([...path, name], found);
    }
  };
  for (const [name, content] of Object.entries(rates)) {
    if (name === "sites") {
      for (const [site, own] of Object.entries(content)) table(["sites", site], own);
    } else {
      table([name], content);
    }
  }
  document.getElementById("toml").textContent = lines.join("\n").trimEnd();
}

// JavaScript writes 1e-7 and 1e+21, which TOML reads as well.
const tomlNumber = (number) => String(number);

// -- inputs --------------------------------------------------------------------------------------------------------

function rangeOf(name) {
  if (name === "losing_share") return null; // linear
  if (name.endsWith("per_year")) return [1e-6, 1e4];
  if (name.endsWith("bytes")) return [1, 1e9];
  if (name === "messages_per_second") return [1e-3, 1e6];
  return [1e-3, 1e7]; // seconds
}

function toSlider(name, value) {
  const range = rangeOf(name);
  if (!range) return 1000 * value;
  if (value === 0) return 0;
  const [low, high] = range.map(Math.log10);
  return Math.min(1000, Math.max(1, 1 + 999 * (Math.log10(value) - low) / (high - low)));
}

function fromSlider(name, position) {
  const range = rangeOf(name);
  if (!range) return position / 1000;
  if (position < 1) return aboveZero(name) ? range[0] : 0;
  const [low, high] = range.map(Math.log10);
  const value = Number((10 ** (low + (high - low) * (position - 1) / 999)).toPrecision(3));
  return name.endsWith("bytes") ? Math.round(value) : value;
}

const aboveZero = (name) =>
  ["messages_per_second", "message_bytes", "gap_timeout", "max_bytes"].includes(name);

function parsed(name, text) {
  const value = Number(text);
  const most = name === "losing_share" ? 1 : 1e9;
  const least = name === "max_bytes" ? 1024 : 0;
  const valid = text.trim() !== "" && value >= least && value <= (name.endsWith("_bytes") ? 2 ** 62 : most);
  return valid && !(aboveZero(name) && value === 0) ? value : null;
}

let inputs = 0;

function numberInput(name, get, set) {
  const id = `input-${++inputs}`;
  const slider = element("input", { type: "range", min: 0, max: 1000, step: "any", "aria-label": name });
  const text = element("input", { type: "text", inputmode: "decimal", id, autocomplete: "off" });
  slider.value = toSlider(name, get());
  text.value = String(get());
  slider.addEventListener("input", () => {
    set(fromSlider(name, Number(slider.value)));
    text.value = String(get());
    text.setAttribute("aria-invalid", "false");
    changed();
  });
  text.addEventListener("input", () => {
    const value = parsed(name, text.value);
    text.setAttribute("aria-invalid", String(value === null));
    if (value === null) return;
    set(value);
    slider.value = toSlider(name, value);
    changed();
  });
  return element("div", { class: "input", "data-name": name }, element("label", { for: id }, name), slider, text);
}

function choiceInput(name, words, get, set) {
  const id = `input-${++inputs}`;
  const select = element("select", { id }, ...words.map((word) => element("option", { value: word }, String(word))));
  select.value = get();
  select.addEventListener("change", () => {
    set(words.find((word) => String(word) === select.value));
    changed();
  });
  return element("div", { class: "input", "data-name": name }, element("label", { for: id }, name), select);
}

function settingInput(name) {
  const get = () => client[name];
  const set = (value) => { client = { ...client, [name]: value }; };
  if (name === "confirm") {
    const words = ["all", "all-active", "any"];
    for (let sites = 1; sites <= client.sites.length; sites++) words.push(sites);
    return choiceInput(name, words, get, set);
  }
  return name in CHOICES ? choiceInput(name, CHOICES[name], get, set) : numberInput(name, get, set);
}

function rateInputs(path, content) {
  const own = Object.entries(content).filter(([, value]) => typeof value === "number").map(([name]) =>
    numberInput(name, () => valueAt(rates, [...path, name]),
      (value) => { rates = withValue(rates, [...path, name], value); }));
  const field = element("fieldset", { "data-table": path.join(".") }, element("legend", {}, path.join(" ")), ...own);
  const inner = Object.entries(content).filter(([, value]) => value && typeof value === "object")
    .flatMap(([name, value]) => rateInputs([...path, name], value));
  return own.length ? [field, ...inner] : inner;
}

function makeInputs() {
  const settings = element("fieldset", { "data-table": "client" }, element("legend", {}, "settings of the client"),
    ...SETTINGS.map(settingInput));
  document.getElementById("inputs").replaceChildren(settings,
    ...Object.entries(rates).flatMap(([name, content]) => rateInputs([name], content)));
}

// -- all together --------------------------------------------------------------------------------------------------

let waiting = 0;
let slow = 0;

// While a slider moves, what is shown follows; the derivatives, which take longer, follow when it rests.
function changed() {
  if (!waiting) {
    waiting = requestAnimationFrame(() => {
      waiting = 0;
      show();
    });
  }
}

function show() {
  const plan = makePlan(rates, client);
  showResults(plan.client);
  showMap(plan);
  showCompared(plan);
  showToml();
  clearTimeout(slow);
  slow = setTimeout(() => showInfluences(plan.client.fate), 150);
}

document.getElementById("shown").addEventListener("change", (event) => {
  shown = Number(event.target.value);
  changed();
});
document.getElementById("inputs").addEventListener("submit", (event) => event.preventDefault());
document.getElementById("reset").addEventListener("click", () => {
  rates = structuredClone(FILE.rates);
  client = structuredClone(FILE.client);
  makeInputs();
  changed();
});
makeInputs();
show();
