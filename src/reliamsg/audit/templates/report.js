(() => {
  "use strict";
  const source = document.getElementById("figures");
  if (!source) return;
  const figures = JSON.parse(source.textContent);
  const root = document.documentElement;

  // A copy of a figure in which names of the style sheet's colours have become colours.
  function colored(value, style) {
    if (typeof value === "string") return value.startsWith("--") ? style.getPropertyValue(value).trim() : value;
    if (Array.isArray(value)) return value.map((each) => colored(each, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, colored(each, style)]));
  }

  function axis(given, style) {
    const quiet = style.getPropertyValue("--soft").trim();
    return {
      automargin: true, fixedrange: true, zeroline: false, gridcolor: style.getPropertyValue("--rule").trim(),
      tickfont: { color: quiet, size: 12 }, exponentformat: "none", separatethousands: true,
      ...given, title: { standoff: 8, font: { color: quiet, size: 12 }, ...(given.title || {}) },
    };
  }

  function draw() {
    const style = getComputedStyle(root);
    for (const [name, figure] of Object.entries(figures)) {
      const { data, layout } = colored(figure, style);
      for (const key of Object.keys(layout)) {
        if (/^[xy]axis/.test(key)) layout[key] = axis(layout[key], style);
      }
      Plotly.react(name, data, {
        autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false, bargap: 0.4,
        font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: style.getPropertyValue("--ink").trim() },
        margin: { l: 8, r: 8, t: data.filter((each) => each.name).length > 1 ? 36 : 8, b: 8 }, hovermode: "closest",
        legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", xanchor: "left", traceorder: "normal" },
        ...layout,
      }, { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false, showTips: false });
    }
  }

  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  // Paper is light, whatever the screen is.
  addEventListener("beforeprint", () => { root.dataset.theme = "light"; draw(); });
  addEventListener("afterprint", () => { delete root.dataset.theme; draw(); });
})();
