"use strict";
// Everything that comes from a run is set as text, never as markup. What is open stands in the address: #q=CELL.QUESTION
const data = JSON.parse(document.getElementById("data").textContent);
const dialog = document.getElementById("behind");
const part = (name) => dialog.querySelector(name);
let open = -1, current = -1, kind = "all", words = "";

const make = (tag, text, name) => {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = text;
  if (name) element.className = name;
  return element;
};
const usd = (amount) => (amount === 0 ? "$0" : amount >= 1 ? "$" + amount.toFixed(2) : "$" + amount.toPrecision(2));
const time = (s) => (s >= 100 ? s.toFixed(0) + " s" : s >= 1 ? s.toFixed(1) + " s" : (s * 1000).toFixed(0) + " ms");
const go = (address) => { location.hash = address; };

function filters(cell) {
  const bar = part(".kinds");
  bar.replaceChildren();
  const shown = (verdict) => cell.questions.filter((q) => q.verdict === verdict).length;
  const all = ["right", "partly", "wrong"].filter((verdict) => cell.counts[verdict]);
  const total = all.reduce((sum, verdict) => sum + cell.counts[verdict], 0);
  for (const verdict of ["all", ...all]) {
    const [some, of] = verdict === "all" ? [cell.questions.length, total] : [shown(verdict), cell.counts[verdict]];
    const button = make("button", `${verdict} ${some === of ? of : some + " of " + of}`);
    button.type = "button";
    button.setAttribute("aria-pressed", String(verdict === kind));
    button.onclick = () => { kind = verdict; filters(cell); list(cell); };
    bar.append(button);
  }
}

function list(cell) {
  const places = part(".list");
  places.replaceChildren();
  cell.questions.forEach((q, place) => {
    const text = [q.question, q.answer, q.id, ...q.golden, ...q.asked].join("\n").toLowerCase();
    if ((kind !== "all" && q.verdict !== kind) || !text.includes(words)) return;
    const button = make("button");
    button.type = "button";
    button.append(make("span", q.verdict, "verdict " + q.verdict), " ", q.question);
    button.append(make("span", q.answer === null ? `no answer (${q.stop})` : "→ " + q.answer, "said"));
    button.dataset.place = place;
    button.onclick = () => go(`q=${open}.${place}`);
    const item = make("li");
    item.append(button);
    places.append(item);
  });
  if (!places.children.length) places.append(make("li", "No question here matches.", "left"));
  mark();
}

function mark() {
  for (const button of part(".list").querySelectorAll("button")) {
    if (+button.dataset.place === current) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
}

function field(into, name, value) {
  if (value === null || value === undefined || value === "") return;
  into.append(make("dt", name), make("dd", value));
}

function said(step, name, text) {
  if (!text || !text.trim()) return;
  const paragraph = make("p");
  paragraph.append(make("span", name, "label"), text.trim());
  step.append(paragraph);
}

function member(step, before) {
  const box = make("section", null, "step member"), head = make("h4", step.member);
  const tokens = step.tokens === null ? "" : `${step.tokens} tokens out${step.estimated ? " (estimated)" : ""}, `;
  head.append(make("span", `member, round ${step.round}: ${tokens}${usd(step.usd)}, ${time(step.s)}`));
  box.append(head);
  if (step.query !== before) said(box, "asked", step.query);
  said(box, "replies" + (step.truncated ? " (cut at its output limit)" : ""), step.reply);
  said(box, "failed", step.failed);
  said(box, "answered in its place", step.served);
  return box;
}

function policy(step) {
  const box = make("section", null, "step"), head = make("h4", "the policy " + step.does);
  head.append(make("span", `${step.tokens} tokens, ${time(step.s)}`));
  box.append(head);
  said(box, "thinks", step.thinks);
  said(box, step.does, step.text);
  return box;
}

function one(q) {
  const pane = part(".one"), facts = make("dl"), back = make("button", "← all questions", "back");
  back.type = "button";
  back.onclick = () => go(`q=${open}`);
  const title = make("h3", q.question);
  title.tabIndex = -1;
  pane.replaceChildren(back, title, facts);
  field(facts, "answer", q.answer === null ? `none (${q.stop})` : q.answer);
  field(facts, "right answers", q.golden.join(" | "));
  field(facts, "scores", Object.entries(q.metrics).map(([name, value]) => `${name} ${+value.toFixed(3)}`).join(", "));
  field(facts, "cost", `raw ${q.raw.toFixed(1)}; members ${usd(q.members)}, policy ${usd(q.policy)}`);
  field(facts, "took", `${time(q.wall)}; ${q.asked.length} call${q.asked.length === 1 ? "" : "s"}; stopped: ${q.stop}`);
  field(facts, "lies in", q.where);
  const did = q.did;
  if (!did) {
    pane.append(make("p", "Its trajectory is not in the run's directory.", "left"));
    return title;
  }
  field(facts, "error", did.error);
  field(facts, "format", did.format.join(", "));
  field(facts, "notes", did.notes.join("\n"));
  let before = "";
  for (const step of did.steps) {
    pane.append(step.kind === "member" ? member(step, before) : policy(step));
    before = step.text;
  }
  if (did.more) pane.append(make("p", `${did.more} more steps lie in ${q.where}`, "left"));
  pane.scrollTop = 0;
  return title;
}

function show() {
  const [, at, place] = /^#q=(\d+)(?:\.(\d+))?$/.exec(location.hash) || [];
  const cell = at === undefined ? undefined : data.cells[+at];
  if (!cell) {
    if (dialog.open) dialog.close();
    return;
  }
  if (open !== +at) {
    open = +at;
    kind = "all";
    words = part("input").value = "";
    part("h2").textContent = cell.title;
    part(".top .left").textContent = cell.left;
    filters(cell);
    list(cell);
    part(".list").scrollTop = 0;
    part(".one").replaceChildren(make("p", "Choose a question to see what was done for it.", "left"));
  }
  const q = place === undefined ? undefined : cell.questions[+place];
  dialog.classList.toggle("reading", Boolean(q));
  if (!dialog.open) dialog.showModal();
  if (q) one(q).focus({ preventScroll: true });
  current = q ? +place : -1;
  mark();
}

part("input").oninput = (event) => { words = event.target.value.trim().toLowerCase(); list(data.cells[open]); };
part(".close").onclick = () => dialog.close();
dialog.onclose = () => {
  open = -1;
  if (location.hash.startsWith("#q=")) history.replaceState(null, "", location.pathname + location.search);
};
for (const button of document.querySelectorAll("[data-cell]")) button.onclick = () => go("q=" + button.dataset.cell);
addEventListener("hashchange", show);
show();
