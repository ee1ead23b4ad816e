// Where numbers come from: arrays embedded in the page, or the explorer that serves it.
// Both answer marks({quantity, axes, rows, by, least}) with {numbers, reasons, rows}, flat in the order of the axes.

async function unpacked(id) {
  const text = atob(document.getElementById(id).textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Two planes of bytes of differences of 16-bit codes of logarithms: 0 is NaN, 1 is zero.
function numbersOf(how, bytes) {
  const size = how.size, found = new Float32Array(size);
  if (how.stored === "float32") {
    const view = new DataView(new ArrayBuffer(4));
    for (let i = 0; i < size; i += 1) {
      for (let k = 0; k < 4; k += 1) view.setUint8(k, bytes[k * size + i]);
      found[i] = view.getFloat32(0, true);
    }
    return found;
  }
  let code = 0;
  for (let i = 0; i < size; i += 1) {
    code = (code + bytes[i] + 256 * bytes[size + i]) & 0xffff;
    found[i] = code === 0 ? NaN : code === 1 ? 0 : Math.exp(how.low + how.step * (code - 2));
  }
  return found;
}

class EmbeddedSource {
  constructor(grid, stored) {
    this.live = false;
    this.grid = grid;
    this.stored = stored;
    this.sizes = Object.fromEntries(grid.axes.map((axis) => [axis.name, axis.texts.length]));
    this.kinds = [0, ...grid.constraints.map((c) => (c.kind === "illegal" ? 2 : 1))];
    this.known = new Map();
  }

  strided(axes) {
    const strides = {};
    let stride = 1;
    for (const axis of [...axes].reverse()) { strides[axis] = stride; stride *= this.sizes[axis]; }
    return strides;
  }

  async array(name) {
    if (!this.known.has(name)) {
      const how = this.stored.numbers[name], why = this.stored.reasons[how.reasons];
      this.known.set(name, Promise.all([unpacked(`numbers-${name}`), unpacked(`reasons-${how.reasons}`)]).then(
        ([numbers, reasons]) => ({
          numbers: numbersOf(how, numbers), strides: this.strided(how.axes), reasons, why: this.strided(why.axes),
        })));
    }
    return this.known.get(name);
  }

  async marks({ quantity, axes, rows, by, least }) {
    const shown = await this.array(quantity);
    const scored = by in this.stored.numbers ? await this.array(by) : shown;
    const others = this.grid.axes.map((a) => a.name).filter((a) => !axes.includes(a));
    const combos = this.product(others, rows), sign = least ? 1 : -1;
    const place = (strides, at) => Object.entries(strides).reduce((sum, [axis, n]) => sum + n * (at[axis] ?? 0), 0);
    const offsets = combos.map((at) => [place(scored.strides, at), place(scored.why, at)]);
    const found = { numbers: [], reasons: [], rows: Object.fromEntries(this.grid.axes.map((a) => [a.name, []])) };
    for (const mark of this.product(axes, rows)) {
      const number = place(scored.strides, mark), reason = place(scored.why, mark);
      let best = 0, lowest = Infinity, score = Infinity;
      for (let i = 0; i < offsets.length && offsets.length > 1; i += 1) {
        const kind = this.kinds[scored.reasons[reason + offsets[i][1]]];
        if (kind > lowest) continue;
        if (kind < lowest) { lowest = kind; score = Infinity; best = 0; }
        const value = sign * scored.numbers[number + offsets[i][0]];
        if (kind < 2 && value < score) { score = value; best = i; }
      }
      const at = { ...combos[best], ...mark };
      const why = shown.reasons[place(shown.why, at)], value = shown.numbers[place(shown.strides, at)];
      found.numbers.push(this.kinds[why] === 2 || Number.isNaN(value) ? null : value);
      found.reasons.push(why);
      for (const axis of this.grid.axes) found.rows[axis.name].push(at[axis.name]);
    }
    return found;
  }

  // Every quantity of one design.
  async design({ rows }) {
    const at = Object.fromEntries(Object.entries(rows).map(([axis, row]) => [axis, [row]]));
    const found = await Promise.all(this.grid.quantities.map((q) => this.marks({ quantity: q.name, axes: [], rows: at, by: q.name, least: true })));
    return { numbers: found.map((one) => one.numbers[0]), reasons: found.map((one) => one.reasons[0]) };
  }

  product(axes, rows) {
    return axes.reduce((every, axis) => every.flatMap((at) => rows[axis].map((row) => ({ ...at, [axis]: row }))), [{}]);
  }
}

class LiveSource {
  constructor() {
    this.live = true;
    this.known = new Map(); // answers about slices, the latest ones
  }

  async ask(what, body) {
    const answer = await fetch(what, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
    });
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    return found;
  }

  async marks(asked) {
    const key = JSON.stringify(asked);
    if (!this.known.has(key)) {
      const found = await this.ask("marks", asked);
      if (this.known.size >= 200) this.known.delete(this.known.keys().next().value);
      this.known.set(key, found);
    }
    return this.known.get(key);
  }


  design(asked) { return this.ask("design", asked); }
}
