// Add a hint above a table or plot that is wider than the screen.
function hint(region) {
  const note = document.createElement("p");
  note.className = "scroll-hint";
  note.textContent = "Scroll sideways for more →";
  region.before(note);
  const update = () => { note.hidden = region.scrollWidth - region.clientWidth - region.scrollLeft < 2; };
  region.addEventListener("scroll", update);
  const sizes = new ResizeObserver(update);
  [region, ...region.children].forEach((each) => sizes.observe(each));
  update();
  return update;
}
