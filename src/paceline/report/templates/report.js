"use strict";
// Draws the charts, keeps them in the page's theme, and lets the legend hide a strategy in all of them.
(() => {
  const root = document.documentElement;
  const specs = JSON.parse(document.getElementById("chart-specs").textContent);
  const config = {responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"]};
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isTouch = matchMedia("(pointer: coarse)").matches; // dragging scrolls the page there
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);

  // Colours resolved by the browser, so that the style sheet stays the only place that names them.
  const resolved = (name) => {
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = `var(${name})`;
    const colour = getComputedStyle(probe).color;
    probe.remove();
    return colour;
  };

  const themed = (layout) => {
    const ink = resolved("--ink"), soft = resolved("--soft"), line = resolved("--line"), card = resolved("--card");
    const axis = {gridcolor: line, linecolor: line, tickcolor: line, tickfont: {color: soft, size: 12}};
    const withAxis = (given) => ({...given, ...axis, title: {...given.title, font: {color: soft, size: 12.5}}});
    return {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: {family: getComputedStyle(document.body).fontFamily, size: 12.5, color: ink},
      hoverlabel: {bgcolor: card, bordercolor: line, font: {color: ink, size: 12.5}, align: "left", namelength: -1},
      modebar: {bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: ink},
      dragmode: isTouch ? false : "zoom",
      xaxis: withAxis(layout.xaxis),
      yaxis: withAxis(layout.yaxis),
    };
  };

  const hidden = new Set();
  const draw = () => {
    const soft = resolved("--ink"), card = resolved("--card");
    for (const spec of specs) {
      const data = spec.data.map((trace) => {
        const copy = {...trace, visible: !hidden.has(trace.meta)};
        if (copy.error_x) copy.error_x = {...copy.error_x, color: soft};
        if (copy.marker && copy.marker.pattern) {
          copy.marker = {...copy.marker, pattern: {...copy.marker.pattern, bgcolor: card}, line: {color: copy.marker.color, width: 1}};
        }
        if (copy.mode === "markers" && copy.marker) copy.marker = {...copy.marker, line: {color: card, width: 1}};
        return copy;
      });
      Plotly.react(spec.id, data, themed(spec.layout), config);
    }
    const button = document.getElementById("theme");
    button.textContent = isDark() ? "Light theme" : "Dark theme";
  };

  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    draw();
  });
  prefersDark.addEventListener("change", draw);
  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const strategy = Number(button.dataset.strategy);
      if (!hidden.delete(strategy)) hidden.add(strategy);
      button.setAttribute("aria-pressed", String(!hidden.has(strategy)));
      draw();
    });
  }
  draw();
})();
