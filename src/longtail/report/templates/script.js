"use strict";
// A click on a column sorts by it: numbers descending, words ascending; a second click reverses the order.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  heads.forEach((head, place) => head.querySelector("button").addEventListener("click", () => {
    const numeric = head.classList.contains("number");
    const now = head.getAttribute("aria-sort");
    const next = now ? (now === "ascending" ? "descending" : "ascending") : (numeric ? "descending" : "ascending");
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", next);
    const sign = next === "ascending" ? 1 : -1;
    const key = (row) => row.cells[place].dataset.v;
    const rows = [...body.rows].sort((a, b) => {
      const x = key(a), y = key(b);
      if (x === "" || y === "") return (x === "") - (y === "");
      return sign * (numeric ? x - y : x.localeCompare(y, undefined, { numeric: true }));
    });
    body.append(...rows);
  }));
}
// The search shows rows that contain all words.
for (const field of document.querySelectorAll("input[type=search]")) {
  const rows = [...document.getElementById(field.dataset.table).tBodies[0].rows];
  const found = field.parentElement.querySelector(".found");
  const texts = rows.map((row) => [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase());
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, place) => {
      row.hidden = !words.every((word) => texts[place].includes(word));
      shown += !row.hidden;
    });
    found.textContent = words.length ? `${shown} of ${rows.length} rows` : `${rows.length} rows`;
  });
}
// A shade at the right edge shows that there is more to scroll to.
const shade = (box) => {
  const hidden = box.scrollWidth - box.clientWidth;
  box.parentElement.classList.toggle("wide", hidden > 1);
  box.parentElement.classList.toggle("more", hidden - box.scrollLeft > 1);
};
const widths = new ResizeObserver((entries) => entries.forEach((entry) => shade(entry.target)));
for (const box of document.querySelectorAll(".edge > .scroll, .edge > ul")) {
  widths.observe(box);
  box.addEventListener("scroll", () => shade(box), { passive: true });
}
// Figures fill columns from the top: each spans as many small rows as it is high.
const heights = new ResizeObserver((entries) => {
  for (const { target } of entries) target.style.gridRowEnd = `span ${Math.ceil((target.offsetHeight + 18) / 8)}`;
});
for (const gallery of document.querySelectorAll(".gallery")) {
  gallery.classList.add("packed");
  for (const figure of gallery.children) heights.observe(figure);
}
for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "Selected";
    }
  });
}
