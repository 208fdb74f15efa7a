"use strict";
// Draws the charts in the theme of the page; handles hiding strategies, switching views, the keyboard and printing.
(async () => {
  const root = document.documentElement;
  const specs = JSON.parse(document.getElementById("chart-specs").textContent);
  const figures = [...document.querySelectorAll("figure[data-chart]")];
  const config = {responsive: true, displaylogo: false, modeBarButtons: [["toImage", "resetScale2d"]]};
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isTouch = matchMedia("(pointer: coarse)").matches; // dragging scrolls the page there
  const isNarrow = matchMedia("(max-width: 640px)");
  const printWidth = 660; // pixels between the margins of a sheet
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const hidden = new Set();

  // Plotly is compressed to keep the page small; the page's content policy allows its digest.
  const unpack = async () => {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  };

  // The browser resolves colours, so that only the style sheet defines them.
  const resolved = (name) => {
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = `var(${name})`;
    const colour = getComputedStyle(probe).color;
    probe.remove();
    return colour;
  };
  let theme;
  const readTheme = () => {
    theme = Object.fromEntries(["ink", "soft", "line", "card"].map((name) => [name, resolved(`--${name}`)]));
    theme.family = getComputedStyle(document.body).fontFamily;
    document.getElementById("theme").textContent = isDark() ? "Light theme" : "Dark theme";
  };

  const layoutOf = (layout) => {
    const {ink, soft, line, card, family} = theme;
    const axis = {gridcolor: line, linecolor: line, tickcolor: line, zerolinecolor: soft, tickfont: {color: soft, size: 12}};
    const withAxis = (given) => ({...given, ...axis, title: {...given.title, font: {color: soft, size: 12.5}}});
    return {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: {family, size: 12.5, color: ink},
      hoverlabel: {bgcolor: card, bordercolor: soft, font: {color: ink, size: 12.5, family}, align: "left", namelength: -1},
      modebar: {bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: ink},
      dragmode: isTouch ? false : "zoom",
      xaxis: withAxis(layout.xaxis),
      yaxis: withAxis(layout.yaxis),
      shapes: (layout.shapes || []).map((shape) => ({...shape, line: {color: soft, width: 1, dash: "dot"}})),
      annotations: (layout.annotations || []).map((note) => ({...note, font: {color: soft, size: 11.5}})),
    };
  };

  const traceOf = (trace) => {
    const copy = {...trace, visible: !hidden.has(trace.meta)};
    if (isNarrow.matches && copy.mode === "markers+text") copy.mode = "markers"; // names would overlap
    if (copy.error_x) copy.error_x = {...copy.error_x, color: theme.ink};
    const marker = copy.marker;
    if (marker && marker.pattern && !marker.pattern.bgcolor) {
      copy.marker = {...marker, pattern: {...marker.pattern, bgcolor: theme.card}, line: {color: marker.color, width: 1}};
    } else if (marker && String(marker.symbol).startsWith("line-")) {
      copy.marker = {...marker, color: theme.ink, line: {...marker.line, color: theme.ink}};
    } else if (marker && String(copy.mode).startsWith("markers")) {
      copy.marker = {...marker, line: {color: theme.card, width: 1}};
    }
    return copy;
  };

  // On a narrow screen, a legend would cover the chart, so it becomes a list above the chart.
  const ownLegend = (id, view) => {
    const chart = document.getElementById(id);
    const before = chart.previousElementSibling;
    if (before && before.classList.contains("legend")) before.remove();
    if (!isNarrow.matches || !view.layout.showlegend) return {};
    const list = document.createElement("ul");
    list.className = "legend";
    for (const trace of view.data.filter((one) => one.showlegend !== false && one.name)) {
      const item = list.appendChild(document.createElement("li"));
      const {color, pattern} = trace.marker || trace.line || {};
      const stripes = pattern && pattern.fgcolor;
      const sample = item.appendChild(document.createElement("i"));
      const plain = String((trace.marker || {}).symbol).startsWith("line-") ? "currentColor" : color;
      sample.style.background = stripes ? `repeating-linear-gradient(135deg, ${color} 0 3px, ${pattern.fgcolor} 3px 6px)` : plain;
      item.append(new DOMParser().parseFromString(trace.name, "text/html").body.textContent);
    }
    chart.before(list);
    return {showlegend: false};
  };

  const shown = new Map(specs.map((spec) => [spec.id, spec.initial]));
  const draw = (spec, changes = {}) => {
    const view = spec.views[shown.get(spec.id)];
    return Plotly.react(spec.id, view.data.map(traceOf), {...layoutOf(view.layout), ...ownLegend(spec.id, view), ...changes}, config);
  };
  const drawAll = (changes = {}) => {
    readTheme();
    specs.forEach((spec) => draw(spec, changes));
  };

  // On paper and in pictures, the page's key of strategies is missing, so a chart of lines needs its own legend.
  const isNamed = (view) => view.data.some((trace) => trace.type === "scatter" && trace.legendgroup !== undefined);
  const legendOf = (view) => {
    const own = view.layout.legend || {orientation: "h", x: 0, y: -0.22, yanchor: "top"};
    return {showlegend: view.layout.showlegend || isNamed(view), legend: own};
  };
  const drawForPaper = () => {
    readTheme();
    specs.forEach((spec) => draw(spec, {width: printWidth, ...legendOf(spec.views[shown.get(spec.id)])}));
  };

  // A choice applies to all charts that offer it.
  const choose = (name, option) => {
    for (const figure of figures) {
      const spec = specs.find((one) => one.id === figure.dataset.chart);
      const groups = [...figure.querySelectorAll(".choice")].map((group) => [...group.querySelectorAll("option, button")]);
      let view = 0, isTouched = false;
      groups.forEach((options, position) => {
        const owner = options[0].tagName === "OPTION" ? options[0].parentElement : options[0];
        const isAsked = owner.dataset.choice === name && options.some((one) => one.value === option);
        if (isAsked) {
          isTouched = true;
          for (const one of options) {
            if (one.tagName === "OPTION") one.selected = one.value === option;
            else one.setAttribute("aria-pressed", String(one.value === option));
          }
        }
        const pick = options.findIndex((one) => (one.tagName === "OPTION" ? one.selected : one.getAttribute("aria-pressed") === "true"));
        view = view * spec.sizes[position] + pick;
      });
      if (isTouched) {
        shown.set(spec.id, view);
        draw(spec);
      }
    }
  };

  // Arrow keys move along the values like a pointer; a screen reader announces them.
  const stops = (chart) => {
    const isUnified = chart._fullLayout.hovermode === "x unified";
    const traces = chart._fullData.map((trace, curveNumber) => ({trace, curveNumber}))
      .filter(({trace}) => trace.visible === true && trace.hoverinfo !== "skip" && trace.x && trace.x[0] !== null);
    const points = ({trace, curveNumber}) => Array.from(trace.x, (_, pointNumber) => ({curveNumber, pointNumber}));
    if (!isUnified) return traces.flatMap(points).map((point) => [point]);
    const length = Math.max(0, ...traces.map(({trace}) => trace.x.length));
    return Array.from({length}, (_, i) => traces.filter(({trace}) => i < trace.x.length).map(({curveNumber}) => ({curveNumber, pointNumber: i})));
  };
  let speaking;
  const walk = (chart, event) => {
    const step = {ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity}[event.key];
    if (event.key === "Escape") Plotly.Fx.unhover(chart);
    if (step === undefined) return;
    event.preventDefault();
    const all = stops(chart);
    if (!all.length) return;
    const before = Number(chart.dataset.stop ?? -1);
    const at = Math.min(all.length - 1, Math.max(0, before + step));
    chart.dataset.stop = at;
    Plotly.Fx.hover(chart, all[at]);
    clearTimeout(speaking);
    speaking = setTimeout(() => { // plotly updates labels at most every 50 ms
      const texts = [...chart.querySelectorAll(".hoverlayer text")].map((text) => text.textContent);
      document.getElementById("said").textContent = texts.join(", ");
    }, 100);
  };

  const listen = () => {
    document.getElementById("theme").addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      drawAll();
    });
    prefersDark.addEventListener("change", () => drawAll());
    isNarrow.addEventListener("change", () => drawAll());
    for (const button of document.querySelectorAll(".key button")) {
      button.addEventListener("click", () => {
        const strategy = Number(button.dataset.strategy);
        if (!hidden.delete(strategy)) hidden.add(strategy);
        button.setAttribute("aria-pressed", String(!hidden.has(strategy)));
        drawAll();
      });
    }
    for (const element of document.querySelectorAll(".choice button")) {
      element.addEventListener("click", () => choose(element.dataset.choice, element.value));
    }
    for (const element of document.querySelectorAll(".choice select")) {
      element.addEventListener("change", () => choose(element.dataset.choice, element.value));
    }
    for (const chart of document.querySelectorAll(".chart")) {
      chart.addEventListener("keydown", (event) => walk(chart, event));
      chart.addEventListener("blur", () => Plotly.Fx.unhover(chart));
    }
    let before = {};
    addEventListener("beforeprint", () => {
      const closed = [...document.querySelectorAll("details.printed:not([open])")];
      before = {theme: root.dataset.theme, closed};
      closed.forEach((details) => { details.open = true; });
      root.dataset.theme = "light";
      drawForPaper();
    });
    addEventListener("afterprint", () => {
      before.closed.forEach((details) => { details.open = false; });
      if (before.theme) root.dataset.theme = before.theme;
      else delete root.dataset.theme;
      drawAll({autosize: true});
      specs.forEach((spec) => Plotly.Plots.resize(spec.id)); // from the sheet's width back to the screen's
    });
  };

  // A picture of one view for a paper or a slide: light, with its title and its legend.
  const picture = (id, number, title, format, size) => {
    const view = specs.find((spec) => spec.id === id).views[number];
    const layout = layoutOf(view.layout);
    const [family, height] = ["Helvetica, Arial, sans-serif", (layout.height || 320) + 70 + (isNamed(view) ? 40 : 0)];
    Object.assign(layout, {
      width: size, height, paper_bgcolor: "#ffffff", font: {...layout.font, family},
      title: {text: title, x: 0, xanchor: "left", xref: "paper", y: 1, yref: "container", yanchor: "top", pad: {t: 14}, font: {size: 16}},
      margin: {...layout.margin, t: 60 + (layout.showlegend ? 20 : 0), l: 20, r: Math.max(layout.margin.r, 24), b: 20},
      ...legendOf(view),
    });
    return Plotly.toImage({data: view.data.map(traceOf), layout, config: {}}, {format, width: size, height, scale: format === "png" ? 2 : 1});
  };

  try {
    await unpack();
  } catch (error) {
    document.getElementById("trouble").hidden = false;
    throw error;
  }
  readTheme();
  listen();
  for (const spec of specs) {
    draw(spec);
    await new Promise((resolve) => setTimeout(resolve)); // keeps the page responsive between two charts
  }
  window.paceline = {picture};
  root.dataset.drawn = "yes";
})();
