"use strict";
const EVERY = {{ 1000 * every }};
const find = id => document.getElementById(id);
const who = find("who"), span = find("span"), pause = find("pause"), dialog = find("ask"), form = dialog.querySelector("form");
const skipped = [];
let at = "", chosen = "", timer = 0, said = 0, asking = null;

// Parts are replaced where they have changed. The focus stays on what has the same id, and nothing is taken from under a
// person who is choosing from a list.
function replace(parts) {
  for (const part of document.querySelectorAll("[data-part]")) {
    const { html, version } = parts[part.id];
    const active = part.contains(document.activeElement) ? document.activeElement : null;
    if (version === part.dataset.version || (active && active.matches("select"))) continue;
    part.innerHTML = html;
    part.dataset.version = version;
    localise(part);
    if (active) (find(active.id) || find("unknown") || find("review")).focus({ preventScroll: true });
  }
}

function localise(part) {
  for (const time of part.querySelectorAll("time")) time.title = new Date(time.dateTime).toLocaleString();
}

function complain(text) {
  find("trouble").hidden = !text;
  if (find("trouble").textContent !== text) find("trouble").textContent = text;
}

async function ask(path, body) {
  const options = body && { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } };
  const answer = await fetch(path, options);
  if (answer.status === 401) location.reload();
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error);
  return value;
}

async function look() {
  clearTimeout(timer);
  const mine = asking = {};
  const shown = document.querySelector("#card [data-answer]");
  const query = new URLSearchParams({ span: chosen, at: at || (shown ? shown.dataset.answer : ""), skip: skipped.join(",") });
  try {
    const value = await ask(`/page/parts?${query}`);
    if (mine === asking) replace(value.parts);
    find("updated").textContent = `at ${new Date().toLocaleTimeString()}`;
    complain("");
  } catch (error) {
    complain(`The page cannot be updated (${error.message}). It tries again.`);
  }
  clearTimeout(timer);
  if (pause.getAttribute("aria-pressed") === "false") timer = setTimeout(look, document.hidden ? 10 * EVERY : EVERY);
}

// A message stays for a while, at the lower edge of the window.
function say(text, ...more) {
  clearTimeout(said);
  find("said").replaceChildren(text, ...more);
  said = setTimeout(() => find("said").contains(document.activeElement) || find("said").replaceChildren(), 15000);
}

function named() {
  if (who.value.trim()) return true;
  say("Write your name at the top first: it is recorded with what you say.");
  who.focus();
  return false;
}

async function judge(button) {
  const card = button.closest("[data-answer]"), value = button.dataset.judge;
  if (card.dataset.busy || !named()) return;
  card.dataset.busy = "yes";
  const class_ = value === "unknown" ? null : Number(value === "selected" ? find("class").value : value);
  try {
    const { says, answer } = await ask("/page/review", { answer: Number(card.dataset.answer), class_, who: who.value });
    const change = Object.assign(document.createElement("button"), { type: "button", className: "quiet small", textContent: "Change" });
    change.dataset.pick = answer;
    say(says, " ", change);
    onwards();
  } catch (error) {
    say(`It was not recorded: ${error.message}`);
    delete card.dataset.busy;
  }
}

function onwards() {
  const card = document.querySelector("#card [data-answer]");
  if (card) delete card.dataset.answer;
  at = "";
  look();
}

function open(id) {
  form.replaceChildren(find(`ask-${id}`).content.cloneNode(true));
  form.elements.signed.value = who.value;
  dialog.showModal();
}

async function promote() {
  const { signed, detector, against, why, force } = Object.fromEntries(new FormData(form));
  try {
    const done = await ask("/page/promote", { detector, against, why, force: force === "yes", who: signed });
    dialog.close();
    remember(signed);
    say(done.says);
    onwards();
  } catch (error) {
    const note = form.querySelector("[role=alert]") || form.appendChild(document.createElement("p"));
    note.setAttribute("role", "alert");
    note.textContent = `Nothing was changed: ${error.message}`;
  }
}

function remember(name) {
  who.value = name;
  try {
    localStorage.setItem("who", name);
  } catch { /* storage is switched off: the name is asked for again */ }
}

document.addEventListener("click", event => {
  const button = event.target.closest("button");
  if (!button) return;
  if ("judge" in button.dataset) judge(button);
  if ("skip" in button.dataset) {
    skipped.push(button.closest("[data-answer]").dataset.answer);
    onwards();
  }
  if ("pick" in button.dataset) {
    at = button.dataset.pick;
    find("review").scrollIntoView({ block: "start" });
    look().then(() => (find("unknown") || find("review")).focus({ preventScroll: true }));
  }
  if ("ask" in button.dataset) open(button.dataset.ask);
  if ("close" in button.dataset) dialog.close();
});

// One key says "unknown", and one passes on, but only inside the card: elsewhere a letter is a letter.
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input, textarea, select")) return;
  const key = { u: "unknown", s: "skip" }[event.key];
  if (key && event.target.closest("#card") && find(key)) find(key).click();
});

form.addEventListener("submit", event => {
  event.preventDefault();
  promote();
});
span.addEventListener("change", () => {
  chosen = span.value;
  look();
});
pause.addEventListener("click", () => {
  const isPaused = pause.getAttribute("aria-pressed") === "true";
  pause.setAttribute("aria-pressed", String(!isPaused));
  look();
});
document.addEventListener("visibilitychange", () => document.hidden || look());
who.addEventListener("change", () => remember(who.value));
try {
  who.value = localStorage.getItem("who") || "";
} catch { /* as above */ }
localise(document);
timer = setTimeout(look, EVERY);
