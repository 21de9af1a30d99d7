"use strict";
(() => {
  const matrix = document.getElementById("matrix");
  const form = document.querySelector(".filters");
  const fields = ["name", "framework", "mode", "verdict"].map((id) => document.getElementById(id));
  const [name, framework, mode, verdict] = fields;
  const count = document.getElementById("count");
  const noMatch = document.getElementById("no-match");
  const columns = [...matrix.tHead.rows[1].cells];
  const groups = [...matrix.tHead.rows[0].cells].slice(1);
  const rows = [...matrix.tBodies[0].rows].filter((row) => !row.classList.contains("more")).map((row) => ({
    row,
    button: row.querySelector("button"),
    more: document.getElementById(row.id.replace("case", "more")),
    text: row.cells[0].textContent.toLowerCase(),
    verdicts: [...row.cells].slice(1).map((cell) => cell.textContent),
  }));
  // One rule hides a column in every row, which is much faster than to hide its cells.
  const hidden = document.head.appendChild(document.createElement("style"));

  const fits = (given) => (verdict.value === "*" ? given && given !== "equal" : verdict.value ? given === verdict.value : given);

  function filter() {
    const shown = columns.map((column) =>
      (!framework.value || column.dataset.framework === framework.value) && (!mode.value || column.dataset.mode === mode.value));
    columns.forEach((column, index) => { column.hidden = !shown[index]; });
    groups.forEach((group) => {
      group.colSpan = Math.max(1, columns.filter((each, index) => shown[index] && each.dataset.framework === group.dataset.framework).length);
      group.hidden = !columns.some((each, index) => shown[index] && each.dataset.framework === group.dataset.framework);
    });
    const left_out = shown.map((is, index) => (is ? [] : `#matrix > tbody > tr > :nth-child(${index + 2})`)).flat();
    const others = shown.map((is, index) => (is ? `:not([data-column~="${index + 1}"])` : "")).join("");
    hidden.textContent = `${[...left_out, `#matrix .card${others}`].join(", ")} { display: none; }`;
    const words = name.value.toLowerCase().split(/\s+/);
    let left = 0;
    for (const { row, more, text, verdicts } of rows) {
      const is = words.every((word) => text.includes(word)) && verdicts.some((given, index) => shown[index] && fits(given));
      row.hidden = !is;
      if (more) more.hidden = !is;
      left += is;
    }
    count.textContent = `${left} of ${rows.length} cases`;
    noMatch.hidden = left > 0;
    matrix.parentElement.hidden = left === 0;
    hints.forEach((update) => update());
  }

  // Filters are kept in the fragment: a page from the disk may change no other part of its address.
  function remember() {
    const chosen = new URLSearchParams(fields.filter((field) => field.value).map((field) => [field.id, field.value]));
    history.replaceState(null, "", `#${chosen.size ? chosen : "cases"}`);
  }

  function recall() {
    const chosen = new URLSearchParams(location.hash.slice(1));
    if (!fields.some((field) => chosen.has(field.id))) return false;
    for (const field of fields) {
      field.value = chosen.get(field.id) ?? "";
      if (field.selectedIndex === -1) field.value = ""; // a choice that this report does not have
    }
    return true;
  }

  function open({ button, more }, is) {
    button.setAttribute("aria-expanded", is);
    more.classList.toggle("open", is);
  }

  function follow() {
    if (recall()) {
      filter();
      form.scrollIntoView();
    }
    const found = rows.find(({ row }) => `#${row.id}` === location.hash);
    if (!found) return;
    if (found.row.hidden) {
      fields.forEach((field) => { field.value = ""; });
      filter();
    }
    if (found.button) {
      open(found, true);
      found.button.focus({ preventScroll: true });
    }
    found.row.scrollIntoView({ block: "center" });
  }

  for (const each of rows) {
    if (!each.button) continue;
    each.row.addEventListener("click", () => open(each, each.button.getAttribute("aria-expanded") !== "true"));
  }
  matrix.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const buttons = rows.filter(({ row, button }) => button && !row.hidden).map(({ button }) => button);
    const next = buttons[buttons.indexOf(event.target) + step];
    if (!step || !buttons.includes(event.target) || !next) return;
    event.preventDefault();
    next.focus();
  });
  const hints = [...document.querySelectorAll(".scroll")].map(hint);
  form.addEventListener("input", () => { filter(); remember(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => { filter(); remember(); })); // the event comes before the fields are empty
  window.addEventListener("hashchange", follow);
  filter(); // a browser keeps what was chosen when the page is loaded again
  follow();
})();
