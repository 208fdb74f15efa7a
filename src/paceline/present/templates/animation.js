"use strict";
// Plays a simulated convolution: the values that every PE holds, receives, calculates and sends in each cycle.
(() => {
  const root = document.documentElement;
  const story = JSON.parse(document.getElementById("story").textContent);
  const [MULTIPLY, SEND, SUM] = ["multiply", "send", "sum"].map((name) => story.operations.indexOf(name));
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const element = (id) => document.getElementById(id);

  const events = story.events.map(([first, last, row, column, kind, left, right, result, image, filter, y, x, tap, loads, other, done]) =>
    ({first, last, place: `${row},${column}`, kind, left, right, result, output: [image, filter, y, x], tap, loads, other, done}));
  const byCycle = Array.from({length: story.cycles + 1}, () => []);
  for (const event of events) for (let cycle = event.first; cycle <= event.last; cycle += 1) byCycle[cycle].push(event);

  // The cells of the array, built once.
  const make = (tag, className, parent) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (parent) parent.append(made);
    return made;
  };
  const array = element("array");
  array.style.gridTemplateColumns = `repeat(${story.columns}, auto)`;
  const cells = new Map();
  const working = new Set(story.passes.flatMap((one) => one.pes.map((pe) => pe.place.join())));
  for (let row = 0; row < story.rows; row += 1) {
    for (let column = 0; column < story.columns; column += 1) {
      const box = make("div", "pe idle", array);
      box.dataset.place = `${row},${column}`;
      make("h3", "", box).textContent = `PE(${row},${column})`;
      if (!working.has(box.dataset.place)) {
        box.classList.add("unused");
        continue;
      }
      const parts = {box, title: box.firstChild};
      for (const name of ["filter", "input"]) parts[name] = make("div", `row ${name}`, box);
      for (const name of ["work", "sums"]) parts[name] = make("div", name, box);
      cells.set(box.dataset.place, parts);
    }
  }

  // The outputs: a table for each image and filter, empty at first.
  const [images, filters, height, width] = story.output_shape;
  const slots = new Map();
  for (let image = 0; image < images; image += 1) {
    for (let filter = 0; filter < filters; filter += 1) {
      const table = make("table", "", element("outputs"));
      if (images * filters > 1) make("caption", "", table).textContent = `image ${image}, filter ${filter}`;
      for (let y = 0; y < height; y += 1) {
        const line = make("tr", "", make("tbody", "", table));
        for (let x = 0; x < width; x += 1) slots.set([image, filter, y, x].join(), make("td", "", line));
      }
    }
  }

  const passAt = (cycle) => {
    let found = story.passes[0];
    for (const one of story.passes) if (one.start < cycle) found = one;
    return found;
  };

  const fillRow = (target, label, values, used, isInUse, isNew) => {
    target.replaceChildren();
    make("span", "label", target).textContent = label;
    values.forEach((value, index) => {
      const item = make("span", isInUse && index === used ? `used${isNew ? " new" : ""}` : "", target);
      item.textContent = value;
    });
  };

  // Long rows are cut around the value in use.
  const near = (values, used) => {
    const most = 9;
    if (values.length <= most) return [values, used];
    const start = Math.max(0, Math.min(values.length - most, (used ?? 0) - 4));
    const [before, after] = [start > 0 ? ["\u2026"] : [], start + most < values.length ? ["\u2026"] : []];
    return [[...before, ...values.slice(start, start + most), ...after], used === undefined ? undefined : used - start + before.length];
  };

  const words = (event) => {
    if (event.kind === SEND) return `sends ${event.result}`;
    const kept = event.kind === SUM && event.other.join() === event.place ? ` (${event.right} kept)` : "";
    return `${event.left} ${event.kind === MULTIPLY ? "\u00d7" : "+"} ${event.right} = ${event.result}${kept}`;
  };

  // The channel of a row and, if PEs hold whole kernels, its row of the kernel; empty if there is only one.
  const laneName = (lane, lanes) => {
    const rows = lanes / story.channels;
    const channel = story.channels > 1 ? ` channel ${Math.floor(lane / rows)}` : "";
    return `${channel}${rows > 1 ? ` row ${lane % rows}` : ""}${lanes > 1 ? ": " : ""}`;
  };

  // While a PE adds, it still shows the rows of its last product.
  const lastProduct = (place, cycle, since) => {
    for (let at = cycle; at > since; at -= 1) {
      const found = byCycle[at].find((event) => event.place === place && event.kind === MULTIPLY);
      if (found) return found;
    }
    return undefined;
  };

  const showPe = (held, cycle, since, cell) => {
    const current = byCycle[cycle].filter((event) => event.place === cell.box.dataset.place);
    const product = current.find((event) => event.kind === MULTIPLY);
    const latest = product ?? lastProduct(cell.box.dataset.place, cycle, since);
    const kinds = current.filter((event) => event.kind !== SEND).map((event) => event.kind);
    cell.box.className = `pe ${kinds.length ? story.operations[Math.max(...kinds)] : current.length ? "send" : "idle"}`;
    cell.work.replaceChildren();
    for (const event of current) make("div", "", cell.work).textContent = words(event);
    if (!held) {
      cell.filter.replaceChildren();
      cell.input.replaceChildren();
      cell.sums.replaceChildren();
      return;
    }
    const lane = latest ? Math.floor(latest.tap / story.kernel_width) : 0;
    const offset = latest ? latest.tap % story.kernel_width : undefined;
    const weights = held.filter.slice(lane * story.kernel_width, (lane + 1) * story.kernel_width);
    const pixel = latest ? offset + latest.output[3] * story.stride : undefined;
    const isNew = (bit) => product && product.first === cycle && (product.loads & bit) !== 0;
    const which = laneName(lane, held.input.length);
    fillRow(cell.filter, `w${which}`, ...near(weights, offset), product, isNew(1));
    fillRow(cell.input, `x${which}`, ...near(held.input[lane], pixel), product, isNew(2));
  };

  const showSums = (start, cycle) => {
    const sums = new Map();
    for (let at = start + 1; at <= cycle; at += 1) {
      for (const event of byCycle[at]) {
        if (event.kind === SEND || event.last > cycle) continue;
        if (!sums.has(event.place)) sums.set(event.place, new Map());
        const own = sums.get(event.place);
        const key = event.output.join();
        if (event.kind !== MULTIPLY || !own.has(key)) own.set(key, {value: event.result, cycle: event.last});
      }
    }
    for (const [place, cell] of cells) {
      cell.sums.replaceChildren();
      for (const {value, cycle: since} of [...(sums.get(place) ?? new Map()).values()].slice(-8)) {
        make("span", since === cycle ? "latest" : "", cell.sums).textContent = `${value} `;
      }
    }
  };

  const showOutputs = (cycle) => {
    for (const slot of slots.values()) {
      slot.textContent = "\u00b7";
      slot.className = "";
    }
    for (const event of events) {
      if (!event.done || event.last > cycle) continue;
      const slot = slots.get(event.output.join());
      slot.textContent = event.result;
      slot.className = event.last === cycle ? "complete latest" : "complete";
    }
  };

  // Animate partial sums from the PE that sends to the PE that adds.
  const fly = (cycle) => {
    for (const old of array.querySelectorAll(".token")) old.remove();
    for (const event of byCycle[cycle].filter((one) => one.kind === SEND)) {
      const from = cells.get(event.place).box;
      const to = cells.get(event.other.join()).box;
      const token = make("div", "token", array);
      token.textContent = event.result;
      // The upper edge of a PE, where the token covers no value.
      const edge = (box) => [box.offsetLeft + box.offsetWidth - token.offsetWidth - 8, box.offsetTop - token.offsetHeight / 2];
      const [[x, y], [endX, endY]] = [edge(from), edge(to)];
      token.style.left = `${endX}px`;
      token.style.top = `${endY}px`;
      if (!isStill) {
        token.animate([{transform: `translate(${x - endX}px, ${y - endY}px)`}, {transform: "none"}], {duration: Math.min(600, pace() * 0.7), easing: "ease-in-out"});
      }
    }
  };

  let now = 0, timer;
  const pace = () => Number(element("speed").value);
  const show = (cycle) => {
    now = Math.max(0, Math.min(story.cycles, cycle));
    element("cycle").value = now;
    element("now").textContent = `${now} / ${story.cycles}`;
    const pass = passAt(now);
    const held = new Map(pass.pes.map((pe) => [pe.place.join(), pe]));
    for (const [place, cell] of cells) {
      const mine = held.get(place);
      const rows = mine && (pass.whole_kernel ? `output row ${mine.output_row}` : `filter row ${mine.filter_row}, input row ${mine.input_row}`);
      const which = mine && [images > 1 ? `image ${mine.image}, ` : "", filters > 1 ? `filter ${mine.number}, ` : ""].join("");
      cell.title.textContent = `PE(${place})${mine ? `: ${which}${rows}` : ""}`;
      showPe(mine, now, pass.start, cell);
    }
    showSums(pass.start, now);
    showOutputs(now);
    fly(now);
    const done = byCycle[now].filter((event) => event.done && event.last === now);
    const complete = done.map((event) => `output [${event.output.slice(images * filters > 1 ? 0 : 2).join(", ")}] = ${event.result}`).join("; ");
    const busy = now ? story.busy[now - 1] : 0;
    element("said").textContent = now ? `Cycle ${now}: ${busy} ${busy === 1 ? "PE works" : "PEs work"}.${complete ? ` Complete: ${complete}.` : ""}` : "Before the first cycle: each PE holds its rows.";
  };

  const stop = () => {
    clearInterval(timer);
    timer = undefined;
    element("play").textContent = "Play";
    element("play").setAttribute("aria-pressed", "false");
  };
  const tick = () => {
    show(now + 1);
    if (now === story.cycles) stop();
  };
  const start = () => {
    if (now === story.cycles) show(0);
    timer = setInterval(tick, pace());
    element("play").textContent = "Pause";
    element("play").setAttribute("aria-pressed", "true");
  };
  const toggle = () => (timer === undefined ? start() : stop());
  const go = (cycle) => {
    stop();
    show(cycle);
  };

  element("cycle").max = story.cycles;
  element("play").addEventListener("click", toggle);
  element("first").addEventListener("click", () => go(0));
  element("back").addEventListener("click", () => go(now - 1));
  element("forward").addEventListener("click", () => go(now + 1));
  element("last").addEventListener("click", () => go(story.cycles));
  element("cycle").addEventListener("input", () => go(Number(element("cycle").value)));
  element("speed").addEventListener("change", () => {
    if (timer === undefined) return;
    stop();
    start();
  });
  addEventListener("keydown", (event) => {
    const keys = {ArrowRight: () => go(now + 1), ArrowLeft: () => go(now - 1), Home: () => go(0), End: () => go(story.cycles)};
    const isTyping = ["SELECT", "INPUT"].includes(event.target.tagName);
    if (event.key === " " && event.target.tagName !== "BUTTON" && event.target.tagName !== "SELECT") {
      event.preventDefault();
      toggle();
    } else if (keys[event.key] && !isTyping) {
      event.preventDefault();
      keys[event.key]();
    }
  });

  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const nameTheme = () => { element("theme").textContent = isDark() ? "Light theme" : "Dark theme"; };
  element("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
  });
  nameTheme();
  show(0);
  root.dataset.drawn = "yes";
})();
