// The view that one moves: a quantity along one or two axes, the others held at a label or at the best of several.

class View {
  constructor(content, source, hooks) {
    this.content = content;
    this.grid = content.grid;
    this.source = source;
    this.hooks = hooks;
    this.state = { shape: "lines", scale: "log", changed: {}, ...structuredClone(this.grid.view) };
    this.axes = new Map(this.grid.axes.map((axis) => [axis.name, axis]));
    this.quantities = new Map(this.grid.quantities.map((quantity) => [quantity.name, quantity]));
    this.asked = 0;
    this.controls = element("div", { class: "controls" });
    this.stage = element("div", { class: "stage" });
    this.note = element("p", { class: "note", role: "status" });
    this.tableOf = element("div");
    this.picture = null;
    redrawn.push(() => this.draw());
  }

  shown() {
    const more = this.source.live ? [["TOML", () => this.toml()]] : [];
    this.build();
    this.details = element("details", { ontoggle: () => this.list() }, element("summary", {}, "Numbers of this view: derive or pin a design"), this.tableOf);
    return [this.controls, element("figure", { class: "moving" }, this.stage, this.note,
      files(() => this.name(), this.stage, () => this.columns(), more), this.details)];
  }

  name() { return [this.state.quantity, this.state.x, this.state.series].filter(Boolean).join("-"); }

  // -- controls -----------------------------------------------------------------------------------------------------

  build() {
    const state = this.state, here = this.along(), again = (change) => (value) => { change(value); this.build(); this.refresh(); };
    const axisNames = here.map((name) => [name, name]);
    const what = [
      choice("Quantity", [...this.quantities.keys()].map((n) => [n, n]), state.quantity, again((v) => { state.quantity = v; })),
      choice("Along", axisNames, state.x, again((v) => { if (v === state.series) state.series = state.x; state.x = v; })),
      choice(state.shape === "cells" ? "Rows" : "Colour", [["", "none"], ...axisNames.filter(([n]) => n !== state.x)], state.series, again((v) => { state.series = v; })),
      choice("Shown as", [["lines", "lines or points"], ["cells", "heat map"]], state.shape, again((v) => { state.shape = v; })),
      choice("Scale", [["log", "logarithmic"], ["linear", "linear"]], state.scale, again((v) => { state.scale = v; })),
    ];
    const others = here.filter((name) => name !== state.x && name !== state.series).map((name) => this.axisControl(name));
    const narrowing = here.map((name) => this.narrowing(name)).filter(Boolean);
    const knobs = this.source.live && this.content.knobs.length ? [this.knobs()] : [];
    const group = (title, list) => (list.length ? element("fieldset", {}, element("legend", {}, title), ...list) : null);
    this.controls.replaceChildren(...[group("Picture", what), group("Held or chosen", others), group("Only designs with", narrowing), ...knobs].filter(Boolean));
  }

  along() { return this.quantities.get(this.state.quantity).axes.concat(this.searched()).filter((n, i, every) => this.axes.has(n) && this.axes.get(n).texts.length > 1 && every.indexOf(n) === i); }
  searched() { const by = this.quantities.get(this.grid.objective); return by ? by.axes : []; }

  axisControl(name) {
    const axis = this.axes.get(name), state = this.state, best = `best of ${this.allowed(name).length}`;
    const set = (value) => { state.rows[name] = value; this.refresh(); };
    if (axis.numbers && axis.texts.length > 6) {
      const held = state.rows[name] === "best" ? 0 : state.rows[name];
      const range = slider(name, axis.texts.length, held, (row) => this.label(axis, row), set);
      const id = identifier("best");
      const box = element("input", { type: "checkbox", id, checked: state.rows[name] === "best", onchange: () => { set(box.checked ? "best" : held); this.build(); } });
      range.querySelector("input").disabled = box.checked;
      range.append(element("label", { for: id, class: "best" }, box, " best"));
      return range;
    }
    const options = [["best", best], ...this.allowed(name).map((row) => [String(row), this.label(axis, row)])];
    return choice(name, options, String(state.rows[name]), (v) => set(v === "best" ? v : Number(v)));
  }

  label(axis, row) { return axis.meaning.startsWith("factor on") ? `× ${axis.texts[row]}` : axis.texts[row]; }

  // Rows of an axis that the menus of its columns leave.
  allowed(name) {
    const axis = this.axes.get(name), wanted = Object.entries(this.state.narrow[name] || {});
    return axis.texts.map((_, row) => row).filter((row) => wanted.every(([column, value]) => String(axis.columns[column][row]) === String(value)));
  }

  narrowing(name) {
    const columns = Object.entries(this.axes.get(name).columns);
    if (!columns.length) return null;
    const menus = columns.map(([column, values]) => {
      const every = [...new Set(values)].sort((a, b) => (typeof a === "number" ? a - b : 0));
      const now = (this.state.narrow[name] || {})[column];
      return choice(column, [["", "any"], ...every.map((v) => [String(v), String(v)])], now === undefined ? "" : String(now), (v) => {
        const chosen = { ...this.state.narrow[name] };
        if (v === "") delete chosen[column]; else chosen[column] = v;
        const before = this.state.narrow[name];
        this.state.narrow[name] = chosen;
        if (!this.allowed(name).length) { this.state.narrow[name] = before; this.say(`no ${name} has ${column} ${v} with the rest`); return this.build(); }
        if (this.state.rows[name] !== "best" && !this.allowed(name).includes(this.state.rows[name])) this.state.rows[name] = this.allowed(name)[0];
        this.build();
        this.refresh();
      });
    });
    return element("div", { class: "narrowing" }, ...menus);
  }

  knobs() {
    const state = this.state, all = new Map(this.content.knobs.map((knob) => [knob.name, knob]));
    const rows = Object.keys(state.changed).map((name) => {
      const knob = all.get(name), steps = 81, factor = (row) => 4 ** ((row - 40) / 20);
      const text = (row) => `× ${digits(factor(row), 3)}${knob.value === null ? "" : ` = ${number(knob.value * factor(row), knob.units)}`}`;
      const row = Math.round(40 + 20 * Math.log(state.changed[name]) / Math.log(4));
      const made = slider(name, steps, row, text, (r) => { state.changed[name] = factor(r); this.refresh(); });
      made.append(element("button", { type: "button", class: "small", "aria-label": `reset ${name}`, onclick: () => { delete state.changed[name]; this.build(); this.refresh(); } }, "reset"));
      return made;
    });
    const free = this.content.knobs.filter((knob) => !(knob.name in state.changed));
    const menu = choice("Change a quantity", [["", "choose …"], ...free.map((knob) => [knob.name, `${knob.name}: ${knob.meaning}`])], "", (v) => { if (v) state.changed[v] = 1; this.build(); this.refresh(); });
    return element("fieldset", {}, element("legend", {}, "Evaluated anew"), menu, ...rows);
  }

  // -- numbers ------------------------------------------------------------------------------------------------------

  request(quantity = this.state.quantity) {
    const { x, series } = this.state, rows = {};
    for (const axis of this.grid.axes) {
      const free = axis.name === x || axis.name === series || this.state.rows[axis.name] === "best";
      rows[axis.name] = free ? this.allowed(axis.name) : [this.state.rows[axis.name]];
    }
    return { quantity, axes: [series, x].filter(Boolean), rows, by: this.grid.objective, least: this.grid.least, changed: this.state.changed };
  }

  async refresh() {
    const mine = (this.asked += 1), asked = this.request();
    try {
      const found = (mine === 1 && this.content.first) || await this.source.marks(asked);
      if (mine !== this.asked) return; // a later position of the slider has been asked for
      this.found = found;
      this.request_ = asked;
      this.picture = this.pictured(asked, found);
      this.say("");
      this.draw();
      this.list();
    } catch (error) {
      if (mine === this.asked) this.say(error.message);
    }
  }

  say(text) { this.note.textContent = plain(text); }

  draw() {
    if (!this.picture) return;
    this.stage.replaceChildren(...drawPicture(this.picture, Math.max(280, this.stage.clientWidth)).filter(Boolean));
    this.stage.dataset.drawn = String(this.asked);
    const panel = this.stage.querySelector("svg.picture");
    if (panel) panel.addEventListener("click", () => { if (panel.value) this.hooks.derive(this.state.quantity, this.rowsAt(this.markOf(panel.value)), this.state.changed); });
  }

  markOf(mark) { return this.picture.panels[0].cells ? mark.y * this.picture.panels[0].x.categories.length + mark.x : this.places.get(mark.series)[mark.i]; }
  rowsAt(i) { return Object.fromEntries(this.grid.axes.map((axis) => [axis.name, this.found.rows[axis.name][i]])); }

  // The design of a mark in words: labels of axes that are not told by the picture.
  design(i) {
    const chosen = this.grid.axes.filter((axis) => axis.texts.length > 1);
    return chosen.map((axis) => `${axis.name} ${this.label(axis, this.found.rows[axis.name][i])}`).join(", ");
  }

  pictured(asked, found) {
    const { x, series, shape } = this.state, along = this.axes.get(x), coloured = this.axes.get(series), quantity = this.quantities.get(this.state.quantity);
    const columns = asked.rows[x] || [0], lines = coloured ? asked.rows[series] : [0], size = columns.length;
    const [unit, sized] = commonUnit(found.numbers, quantity.units), reason = (i) => (found.reasons[i] ? this.grid.constraints[found.reasons[i] - 1].reason : "");
    const value = (i) => (found.numbers[i] === null || found.reasons[i] ? null : found.numbers[i] / sized);
    const label = (i) => `${this.state.quantity} ${number(found.numbers[i], quantity.units)}\n${this.design(i)}`;
    const positive = found.numbers.every((v, i) => value(i) === null || v > 0), scale = this.state.scale === "log" && positive ? "log" : "linear";
    const yAxis = { label: this.state.quantity, unit, scale, categories: [] };
    const picture = { name: this.name(), title: this.state.quantity, legend: coloured ? series : "", see: "", caption: [], panels: [] };
    this.places = new Map();
    if (shape === "cells" && along) {
      const grid = (of) => lines.map((_, r) => columns.map((__, c) => of(r * size + c)));
      const text = (i) => (value(i) === null ? NONE : digits(value(i), 3));
      picture.panels.push({
        x: { label: x, unit: "", scale: "categories", categories: columns.map((row) => this.label(along, row)) },
        y: { label: series || "", unit: "", scale: "categories", categories: coloured ? lines.map((row) => this.label(coloured, row)) : [""] },
        series: [], rules: [], title: "", cells: { value: yAxis, numbers: grid(value), texts: grid(text), labels: grid(label), reasons: grid(reason) },
      });
      return picture;
    }
    const numeric = along && along.numbers, [xUnit, xSize] = numeric ? commonUnit(columns.map((row) => along.numbers[row]), along.units) : ["", 1];
    const spread = numeric && Math.min(...columns.map((r) => along.numbers[r])) > 0 && Math.max(...columns.map((r) => along.numbers[r])) / Math.min(...columns.map((r) => along.numbers[r])) > 20;
    const every = lines.map((row, r) => {
      const at = columns.map((_, c) => r * size + c);
      const one = {
        name: coloured ? this.label(coloured, row) : this.state.quantity, shape: numeric ? "line" : "points", base: [], low: [], high: [], texts: [],
        x: columns.map((c, k) => (numeric ? along.numbers[c] / xSize : k)), y: at.map(value), labels: at.map(label), reasons: at.map(reason),
      };
      this.places.set(one, at);
      return one;
    });
    picture.panels.push({
      x: numeric ? { label: along.meaning.startsWith("factor on") ? along.meaning : x, unit: xUnit, scale: spread ? "log" : "linear", categories: [] } : { label: x, unit: "", scale: "categories", categories: along ? columns.map((row) => this.label(along, row)) : [""] },
      y: yAxis, series: every, rules: [], title: "", cells: null,
    });
    return picture;
  }

  // Every mark with its design, in the units of the study: what a CSV holds.
  columns() {
    const digitsKept = this.source.live ? 9 : 5, size = this.found.numbers.length, rows = [...Array(size).keys()];
    const axes = this.grid.axes.filter((axis) => axis.texts.length > 1).map((axis) => ({ header: axis.name, texts: rows.map((i) => axis.texts[this.found.rows[axis.name][i]]), sorted: axis.numbers ? rows.map((i) => axis.numbers[this.found.rows[axis.name][i]]) : null }));
    const quantity = this.quantities.get(this.state.quantity), known = this.found.numbers;
    return [...axes, { header: quantity.unit === "1" ? quantity.name : `${quantity.name} [${quantity.unit}]`, texts: known.map((v) => (v === null ? "" : String(Number(v.toPrecision(digitsKept))))), sorted: known },
      { header: "reason", texts: this.found.reasons.map((r) => (r ? this.grid.constraints[r - 1].reason : "")), sorted: null }];
  }

  // The table beside the picture; filled when it is unfolded, so that a slider need not wait for it.
  list() {
    if (!this.details || !this.details.open || !this.found) return;
    const quantity = this.quantities.get(this.state.quantity), columns = this.columns(), [unit, sized] = commonUnit(this.found.numbers, quantity.units);
    const shown = columns.map((column, k) => (k === columns.length - 2 ? { ...column, header: unit ? `${quantity.name} [${unit}]` : quantity.name, texts: this.found.numbers.map((v) => (v === null ? "–" : digits(v / sized))) } : column));
    const told = shown.filter((column) => column.header !== "reason" || column.texts.some(Boolean));
    this.tableOf.replaceChildren(table(`Numbers of ${this.name()}`, { columns: told, designs: this.found.numbers.map((_, i) => this.rowsAt(i)) }, {
      derive: this.hooks.derive ? (rows) => this.hooks.derive(this.state.quantity, rows, this.state.changed) : null,
    }));
  }

  async toml() {
    try {
      const found = await this.source.ask("study", { ...this.request(), cells: this.state.shape === "cells" });
      await navigator.clipboard.writeText(found.text).then(() => this.say("the study of this view is in the clipboard and saved"), () => this.say("the study of this view is saved"));
      saved(`${this.name()}.toml`, new Blob([found.text], { type: "application/toml" }));
    } catch (error) { this.say(error.message); }
  }
}
