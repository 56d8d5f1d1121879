(() => {
  "use strict";
  const count = (number) => number.toLocaleString("en-US");
  const read = (id) => { const source = document.getElementById(id); return source ? JSON.parse(source.textContent) : null; };
  const make = (name, text, kind) => {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };

  function copyCommands() {
    if (!navigator.clipboard) return;
    for (const button of document.querySelectorAll("button.copy")) {
      button.hidden = false;
      button.addEventListener("click", async () => {
        const command = button.parentElement.querySelector("code").textContent;
        try {
          await navigator.clipboard.writeText(command);
          button.textContent = "Copied";
        } catch {
          button.textContent = "Select it to copy";
        }
        setTimeout(() => { button.textContent = "Copy"; }, 2000);
      });
    }
  }

  function searchStreams(data) {
    const form = document.querySelector("form.search");
    const body = document.querySelector("#stream-table tbody");
    if (!data || !form || !body) return;
    const query = document.getElementById("query");
    const hits = document.getElementById("hits");
    const more = document.getElementById("show-more");
    const rest = document.getElementById("more-streams");
    const short = (text) => {
      const letters = [...text];
      const element = make("bdi", letters.length > 100 ? `${letters.slice(0, 100).join("")}…` : text);
      if (letters.length > 100) element.title = text;
      return element;
    };
    const name = (row) => `${data.names[row[0]]}/${data.names[row[1]]}${row[2] ? `~${row[2]}` : ""}`;
    const haystack = data.rows.map((row) => `${name(row)} ${data.names[row[7]]} ${data.severities[row[6]]}`.toLowerCase());
    let limit = 25;

    function line(row) {
      const found = make("tr");
      const head = make("th");
      head.scope = "row";
      head.append(short(data.names[row[0]]), "/", short(data.names[row[1]]), row[2] ? `~${row[2]}` : "");
      const number = (value, kind) => make("td", count(value), value ? `n ${kind}` : "n zero");
      found.append(head, number(row[3], ""), number(row[4], "bad"), number(row[5], "bad"), make("td", data.severities[row[6]]));
      const last = make("td");
      last.append(short(row[4] ? data.names[row[7]] : ""));
      found.append(last);
      return found;
    }

    function draw() {
      const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
      const matching = data.rows.filter((_, at) => words.every((word) => haystack[at].includes(word)));
      body.replaceChildren(...matching.slice(0, limit).map(line));
      hits.textContent = words.length ? `${count(matching.length)} of ${count(data.rows.length)}` : "";
      more.hidden = matching.length <= limit;
      const unlisted = data.left_out ? ` ${count(data.left_out)} streams are not in this page: reliamsg audit show DIR STREAM` : "";
      rest.textContent = !matching.length ? `No stream here matches.${unlisted}` : more.hidden ? "" : `${count(matching.length - limit)} more.`;
    }

    form.hidden = false;
    form.addEventListener("submit", (event) => event.preventDefault());
    query.addEventListener("input", () => { limit = 25; draw(); });
    more.addEventListener("click", () => { limit += 200; draw(); });
    draw();
  }

  function readChart(data) {
    const readout = document.getElementById("readout");
    if (!data || !readout) return;
    const time = (us) => new Date(us / 1000).toISOString().replace("T", " ").replace(/(\.000)?Z$/, "");
    for (const svg of document.querySelectorAll("svg.time")) {
      const cursor = svg.querySelector(".cursor");
      const [left, right, width] = ["left", "right", "width"].map((name) => Number(svg.dataset[name]));
      const hide = () => { readout.hidden = true; cursor.classList.remove("on"); };
      svg.addEventListener("pointermove", (event) => {
        const box = svg.getBoundingClientRect();
        const x = (event.clientX - box.left) * width / box.width;
        const at = Math.floor((x - left) / (width - left - right) * data.bins);
        if (at < 0 || at >= data.bins) { hide(); return; }
        const lines = data.rows.map(([name, counts]) => `${name}: ${count(counts[at])}`);
        const outages = data.outages.filter(([, shares]) => shares[at]).map(([site, shares]) => `${site}: ${shares[at]} % without connection`);
        readout.textContent = [`${time(data.start + at * data.width)} UTC`, ...lines, ...outages].join("\n");
        readout.hidden = false;
        const place = event.clientX - box.left;
        readout.style.left = `${Math.max(0, place > box.width / 2 ? place - readout.offsetWidth - 14 : Math.min(place + 14, box.width - readout.offsetWidth))}px`;
        readout.style.top = "2rem";
        const middle = left + (at + 0.5) / data.bins * (width - left - right);
        cursor.setAttribute("x1", middle);
        cursor.setAttribute("x2", middle);
        cursor.classList.add("on");
      });
      svg.addEventListener("pointerleave", hide);
    }
  }

  copyCommands();
  searchStreams(read("stream-data"));
  readChart(read("series"));

  // Paper has no closed parts.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const each of opened) each.open = true;
  });
  addEventListener("afterprint", () => { for (const each of opened) each.open = false; });
})();
