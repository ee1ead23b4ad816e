// What adds up to a number, and what its parts are made of: a tree that unfolds.

function printed(value, unit, units) {
  if (Array.isArray(value)) {
    const flat = value.flat(Infinity).filter(Number.isFinite);
    if (!flat.length) return "–";
    const [least, most] = [Math.min(...flat), Math.max(...flat)];
    return least === most ? printed(least, unit, units) : `${printed(least, unit, units)} to ${printed(most, unit, units)}`;
  }
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "number" ? number(value, units[unit] || [[unit === "1" ? "" : unit, 1, 1]]) : String(value);
}

const SIGNS = { factor: "× ", divisor: "/ ", argument: "of ", part: "" };

function part(found, units, whole, level) {
  const share = found.relation === "part" && typeof found.value === "number" && whole ? found.value / whole : null;
  const line = [
    element("span", { class: "name" }, `${SIGNS[found.relation] || ""}${found.name}`), " ",
    element("span", { class: "value" }, printed(found.value, found.unit, units)), " ",
    element("span", { class: "share" }, share === null ? "" : `${(100 * share).toFixed(1)} %`), " ",
    element("span", { class: "meaning" }, found.meaning || ""),
  ];
  const about = [found.formula, found.source ? `source: ${found.source}` : ""].filter(Boolean).join("; ");
  const own = found.relation === "part" && level > 0 ? whole : typeof found.value === "number" ? found.value : null;
  const below = found.below.map((child) => element("li", {}, part(child, units, own, level + 1)));
  if (found.folded) below.push(element("li", { class: "meaning" }, `and ${found.folded.parts} smaller parts, ${printed(found.folded.value, found.unit, units)} together`));
  if (about) below.push(element("li", { class: "formula" }, about));
  if (!below.length) return element("div", { class: "part" }, ...line);
  return element("details", { open: level < 1 && found.below.length > 0 }, element("summary", { class: "part" }, ...line),
    element("ul", {}, ...below));
}

function derivation(found, units) {
  if (found.error) return element("div", {}, element("p", {}, found.error));
  const at = Object.entries(found.point).map(([axis, label]) => `${axis} ${label}`).join(", ");
  const broken = found.violated.map((one) => element("p", { class: "reason" }, `infeasible: ${one.reason} [${one.name}]`));
  return element("div", { class: "derivation" }, element("p", { class: "point" }, at), ...broken,
    found.story ? part(found.story, units, null, 0) : element("p", {}, `${found.quantity} has no meaning at this design.`),
    found.elasticities ? element("p", { class: "meaning elasticities" }, found.elasticities) : null);
}
