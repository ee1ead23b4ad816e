// Tables that sort and filter. A table is {columns: [{header, texts, sorted, meaning}], designs}.

function table(title, { columns, designs = [] }, { derive = null, filtered = true } = {}) {
  const size = columns.length ? columns[0].texts.length : 0;
  let order = [...Array(size).keys()], sortedBy = null, rising = true;
  const kinds = columns.map((column) => (column.sorted ? "number" : column.texts.some((text) => text.length > 36) ? "long" : null));
  const body = element("tbody"), count = element("span", { class: "count", role: "status" });
  const heads = columns.map((column, i) => {
    const button = element("button", { type: "button", title: column.meaning || null, onclick: () => sort(i) }, column.header);
    return element("th", { scope: "col", class: column.sorted ? "number" : null }, button);
  });
  if (derive) heads.push(element("th", { scope: "col" }, "derivation"));

  function sort(i) {
    rising = sortedBy === i ? !rising : true;
    sortedBy = i;
    const keys = columns[i].sorted || columns[i].texts;
    order.sort((a, b) => {
      if (keys[a] === null || keys[b] === null) return (keys[a] === null) - (keys[b] === null);
      const ahead = keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : a - b;
      return rising ? ahead : -ahead;
    });
    heads.forEach((head, k) => (k === i ? head.setAttribute("aria-sort", rising ? "ascending" : "descending")
      : head.removeAttribute("aria-sort")));
    show();
  }

  function show() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = order.filter((row) => {
      const text = columns.map((column) => column.texts[row]).join(" ").toLowerCase();
      return words.every((word) => text.includes(word));
    });
    body.replaceChildren(...kept.map((row) => {
      const cells = columns.map((column, k) => element(k ? "td" : "th", { scope: k ? null : "row", class: kinds[k] }, column.texts[row]));
      if (derive) {
        cells.push(element("td", {}, designs[row] ? element("button", { type: "button", class: "small", onclick: () => derive(designs[row]) }, "derive") : ""));
      }
      return element("tr", {}, ...cells);
    }));
    count.textContent = kept.length === size ? `${size} rows` : `${kept.length} of ${size} rows`;
  }

  const id = identifier("filter");
  const filter = element("input", { type: "search", id, oninput: show, placeholder: "words, such as h100 1024" });
  const tools = element("div", { class: "filter" }, element("label", { for: id }, "Filter rows"), filter, count);
  show();
  return element("div", { class: "listing" }, filtered && size > 6 ? tools : null, scrolled(title, element("table", {},
    element("caption", { class: "unseen" }, title), element("thead", {}, element("tr", {}, ...heads)), body)));
}

// A wide table scrolls within itself, by keyboard too.
function scrolled(title, child) {
  return element("div", { class: "scrolled", role: "region", "aria-label": `${title}, table`, tabindex: "0" }, child);
}

function csv(columns) {
  const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const lines = [columns.map((column) => quoted(column.header))];
  for (let row = 0; row < columns[0].texts.length; row += 1) lines.push(columns.map((c) => quoted(String(c.texts[row]))));
  return `${lines.map((line) => line.join(",")).join("\n")}\n`;
}
