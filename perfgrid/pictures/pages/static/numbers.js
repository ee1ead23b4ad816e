// Numbers as text: the units of the field, four significant digits, no exponent (as perfgrid prints them).

const DIGITS = 4;

function digits(value, count = DIGITS) {
  if (value === 0) return "0";
  const rounded = Number(value.toPrecision(count));
  if (Math.abs(rounded) < 1e-4) return rounded.toExponential().replace("e-", "e-");
  const places = Math.max(0, count - 1 - Math.floor(Math.log10(Math.abs(rounded))));
  return rounded.toLocaleString("en-US", { maximumFractionDigits: Math.min(20, places) });
}

// The largest unit that is not above a size; `units` are [name, size, least] from the largest to the smallest.
function fitting(size, units) {
  const rounded = Number(Math.abs(size).toPrecision(DIGITS));
  const plain = units.reduce((a, b) => (Math.abs(Math.log(a[1])) <= Math.abs(Math.log(b[1])) ? a : b));
  if (!rounded) return plain;
  return units.find((unit) => rounded >= unit[2]) || units[units.length - 1];
}

function number(value, units) {
  if (value === null || !Number.isFinite(value)) return "–";
  if (units.some((unit) => unit[0] === "") && Number.isInteger(value) && Math.abs(value) < 1e15) {
    return value.toLocaleString("en-US");
  }
  const [name, size] = fitting(value, units);
  return `${digits(value / size)} ${name}`.trim();
}

// The unit for many numbers: that of the middle one.
function commonUnit(values, units) {
  const sizes = values.filter((v) => v !== null && Number.isFinite(v) && v !== 0).map(Math.abs).sort((a, b) => a - b);
  return fitting(sizes.length ? sizes[Math.floor(sizes.length / 2)] : 0, units);
}
