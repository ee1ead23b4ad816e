// Elements of the page. Text is always set as text: labels come from files of strangers.

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && typeof value !== "string") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined).map(plain));
  return made;
}

const CONTROLS = new RegExp("[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\ud800-\\udfff\\u2028\\u2029\\u061c" +
  "\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]", "gu");  // as perfgrid.engine.errors has them
// Control characters of a label are shown, not obeyed.
function plain(child) {
  if (child instanceof Node) return child;
  return String(child).replace(CONTROLS, (c) => {
    const code = c.charCodeAt(0).toString(16);
    return code.length > 2 ? `\\u${code.padStart(4, "0")}` : `\\x${code.padStart(2, "0")}`;
  });
}

let numbered = 0;
function identifier(stem) { numbered += 1; return `${stem}-${numbered}`; }

function section(title, ...children) {
  const id = identifier("section");
  return element("section", { "aria-labelledby": id }, element("h2", { id }, title), ...children);
}

function choice(label, options, value, changed) {
  const id = identifier("choice");
  const menu = element("select", { id, onchange: () => changed(menu.value) },
    ...options.map(([key, text]) => element("option", { value: key }, text)));
  menu.value = value;
  return element("div", { class: "control" }, element("label", { for: id }, label), menu);
}

function slider(label, size, value, text, changed) {
  const id = identifier("slider");
  const shown = element("output", { for: id }, text(value));
  const range = element("input", {
    type: "range", id, min: "0", max: String(size - 1), step: "1", "aria-valuetext": text(value),
    oninput: () => {
      const row = Number(range.value);
      shown.textContent = text(row);
      range.setAttribute("aria-valuetext", text(row));
      changed(row);
    },
  });
  range.value = value;
  return element("div", { class: "control" }, element("label", { for: id }, label, " ", shown), range);
}

function saved(name, blob) {
  const address = URL.createObjectURL(blob);
  const link = element("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
