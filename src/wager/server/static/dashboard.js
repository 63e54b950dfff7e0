// Asks for the figures each second and shows them. Texts go in as text, never as markup.

import { bars, ceiling, lines, rows } from "./charts.js";

const LIVE = "dashboard/live";
const EVERY_MS = 1000;
const SLOWEST_MS = 8000;
const PATIENCE_MS = 10000;
const SPAN_S = 180;
const NOTHING = "n/a";
const FEW = 10;

const $ = (id) => document.getElementById(id);
const past = [];
let timer = null;
let wait = EVERY_MS;
let paused = false;
let asking = false;
let last = null;
let listed = "";
let all = false;

// Numbers and times for people

function number(value, digits = 1) {
  return value === null || value === undefined ? NOTHING : value.toFixed(digits);
}

function percent(value) {
  if (value === null || value === undefined) return NOTHING;
  return value > 0 && value < 0.005 ? "<1 %" : `${(100 * value).toFixed(0)} %`;
}

function rate(value) {
  return value === null ? NOTHING : `${value.toFixed(1)} tokens/s`;
}

function times(value) {
  return value === null ? NOTHING : `${value.toFixed(2)}x`;
}

function duration(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  const hours = Math.floor(seconds / 3600);
  return `${hours} h ${Math.round((seconds - 3600 * hours) / 60)} min`;
}

function put(id, text) {
  const place = $(id);
  if (place.textContent !== text) place.textContent = text;
}

function say(text, bad = false) {
  put("status", text);
  $("status").classList.toggle("bad", bad);
}

// Asking

async function ask() {
  if (asking) return;
  asking = true;
  try {
    // Where the server wants a key, the browser asks for it, and goes on giving it.
    const reply = await fetch(LIVE, {
      cache: "no-store",
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
    if (!reply.ok) throw new Error(`the server answered ${reply.status}`);
    show(await reply.json());
    wait = EVERY_MS;
    say(paused ? "paused" : "live");
  } catch (error) {
    wait = Math.min(2 * wait, SLOWEST_MS);
    const why = error instanceof TypeError ? "the server does not answer" : error.message;
    say(`${why}; what is shown is old`, true);
  } finally {
    asking = false;
  }
  next();
}

function next() {
  clearTimeout(timer);
  if (!paused && !document.hidden) timer = setTimeout(ask, wait);
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  put("pause", paused ? "Go on" : "Pause");
  say(paused ? "paused" : "live");
  if (!paused) ask();
});

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !paused) ask();
});

let resizing = null;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => last && draw(last), 150);
});

// Showing

function show(data) {
  if (last && data.uptime_s < last.uptime_s) past.length = 0;
  last = data;
  $("figures").hidden = false;
  past.push({
    time: data.time,
    speed: data.now.decode_tokens_per_second,
    plain: data.now.plain_tokens_per_second_estimated,
    perStep: data.now.tokens_per_step,
  });
  while (past.length && data.time - past[0].time > SPAN_S) past.shift();
  const named = data.methods.join(", ");
  const drafting = named ? `drafts by ${named}` : "no drafts";
  const since = `up for ${duration(data.uptime_s)}`;
  put("about", `${data.model}; ${drafting}; wager ${data.version}, ${since}`);
  tiles(data);
  verdict(data);
  control(data);
  recent(data);
  draw(data);
}

function tiles(data) {
  const now = data.now;
  put("per-step", number(now.tokens_per_step, 2));
  put("delivered", number(now.tokens_per_second));
  put("step-ms", number(now.step_ms, 2));
  put("plain-ms", number(now.plain_step_ms_estimated, 2));
  put("draft-ms", number(now.draft_ms, 3));
  put("since-start", times(data.totals.speedup_estimated));
  put("running", String(data.running));
  put("waiting", String(data.waiting));
  const share = data.kv.blocks ? data.kv.used / data.kv.blocks : null;
  put("kv", `${percent(share)} of ${data.kv.blocks}`);
  put("prefix", data.prefix.queries ? percent(data.prefix.hits / data.prefix.queries) : NOTHING);
}

function verdict(data) {
  const speedup = data.now.speedup_estimated;
  let word = NOTHING;
  let why = "nothing was decoded within the last seconds.";
  let tone = "unknown";
  if (!data.methods.length) {
    word = "Plain decoding:";
    why = "the server was started without a speculative config.";
  } else if (speedup !== null) {
    tone = speedup > 1.02 ? "gain" : speedup < 0.98 ? "loss" : "even";
    word = times(speedup);
    why = {
      gain: "the speed of plain decoding, estimated: speculation pays.",
      loss: "the speed of plain decoding, estimated: speculation costs time.",
      even: "the speed of plain decoding, estimated: no difference.",
    }[tone];
  } else if (data.now.decode_tokens_per_second !== null) {
    why = "not known yet what a plain step takes.";
  }
  put("verdict", word);
  put("why", why);
  $("verdict").className = `word ${tone}`;
}

function draw(data) {
  const now = data.now;
  const speed = rate(now.decode_tokens_per_second);
  const plain = rate(now.plain_tokens_per_second_estimated);
  rows(
    $("speeds"),
    [
      {
        label: "measured", value: now.decode_tokens_per_second,
        text: speed, kind: "measured",
      },
      {
        label: "plain, estimated", value: now.plain_tokens_per_second_estimated,
        text: plain, kind: "plain",
      },
    ],
    `Decode speed now: ${speed}; plain decoding, estimated: ${plain}`,
  );
  const seconds = past.map((one) => one.time);
  lines(
    $("speed-chart"),
    seconds,
    [
      { values: past.map((one) => one.plain), kind: "plain" },
      { values: past.map((one) => one.speed), kind: "measured" },
    ],
    SPAN_S,
    `Decode speed over the last ${SPAN_S / 60} minutes; now ${speed}`,
  );
  lines(
    $("step-chart"),
    seconds,
    [{ values: past.map((one) => one.perStep), kind: "measured" }],
    SPAN_S,
    `Tokens per step over the last ${SPAN_S / 60} minutes; now ${number(now.tokens_per_step, 2)}`,
    1,
  );
  drafts(data.drafts);
}

function drafts(found) {
  $("draft-charts").hidden = found === null;
  if (found === null) {
    put("drafts-text", "Nothing drafts: the server decodes plainly.");
    return;
  }
  const over = found.over_s === null ? "Since the start" : `In the last ${duration(found.over_s)}`;
  const rate = percent(found.acceptance_rate);
  const length = number(found.acceptance_length, 2);
  const told = found.drafts
    ? `drafts on ${percent(found.coverage)} of ${found.steps} request steps; ` +
      `${found.drafted} tokens drafted, ${found.accepted} accepted (${rate}); ` +
      `${length} tokens per step with a draft`
    : `no drafts in ${found.steps} request steps`;
  put("drafts-text", `${over}: ${told}.`);
  const shares = found.acceptance_by_position_unconditional;
  const entries = shares.map((share, j) => ({
    label: String(j + 1), value: share, text: percent(share), kind: "accepted",
  }));
  const list = entries.map((entry) => `${entry.label}: ${entry.text}`).join(", ");
  const empty = "nothing was drafted";
  bars($("positions"), entries, 1, `Acceptance by position: ${list || empty}`, empty);
  lengths(found);
}

function lengths(found) {
  const counted = found.steps > 0 ? found.lengths : [];
  const entries = counted.map((count, length) => ({
    label: length ? String(length) : "none",
    value: count / found.steps,
    text: percent(count / found.steps),
    kind: length ? "measured" : "none",
  }));
  const told = entries.map((entry) => `${entry.label}: ${entry.text}`).join(", ");
  const most = ceiling(Math.max(...entries.map((entry) => entry.value), 0));
  const about = `Draft lengths, share of request steps: ${told || NOTHING}`;
  bars($("lengths"), entries, most, about, "no steps yet");
}

function control(data) {
  $("control").hidden = data.controller === null;
  if (data.controller === null) return;
  const state = data.controller;
  const account =
    `The loss account stands at ${number(state.balance_steps, 2)} plain steps; ` +
    `at most ${number(state.cap_steps, 2)} are saved up. Since the start bets brought ` +
    `${number(state.gained_steps)} plain steps and cost ${number(state.lost_steps)}.`;
  const off = "The controller is off: drafts have a fixed length, whatever they cost.";
  put("account", state.balance_steps === null ? off : account);
  const counted = Object.entries(data.drafts ? data.drafts.reasons : {});
  const reasons = counted.sort((a, b) => b[1] - a[1]);
  const total = reasons.reduce((sum, [, count]) => sum + count, 0);
  $("reasons").replaceChildren(
    ...reasons.map(([reason, count]) => {
      const row = document.createElement("tr");
      row.append(cell(reason === "bet" ? "bet: drafts were verified" : reason));
      row.append(cell(String(count), "n"), cell(percent(count / total), "n"));
      return row;
    }),
  );
}

function cell(text, kind = "") {
  const made = document.createElement("td");
  made.textContent = text;
  made.className = kind;
  return made;
}

function recent(data) {
  const count = data.recent.length;
  const shown = all ? data.recent : data.recent.slice(0, FEW);
  const mark = shown.map((one) => `${one.id} ${one.ended}`).join();
  $("more").hidden = count <= FEW;
  put("more", all ? `Show the last ${FEW} only` : `Show all ${count}`);
  // Left alone where nothing is new, so that a text can be read and selected.
  if (mark === listed) return;
  listed = mark;
  const hint = data.shows_text
    ? "Underlined: accepted draft tokens. The rest the model wrote one token at a time."
    : "Texts are shown where the server was started with --dashboard-show-text.";
  put("recent-text", count ? hint : "None yet.");
  $("recent").replaceChildren(...shown.map(request));
}

$("more").addEventListener("click", () => {
  all = !all;
  $("more").setAttribute("aria-expanded", String(all));
  if (last) recent(last);
});

function request(one) {
  const item = document.createElement("li");
  const when = new Date(1000 * one.ended).toLocaleTimeString();
  item.append(line("what", `${when} ${one.route}: ${one.finish_reason}`));
  const cached = one.cached_tokens ? ` (${one.cached_tokens} cached)` : "";
  const accepted = `${one.accepted} of ${one.drafted} draft tokens accepted`;
  const facts = [
    `${one.prompt_tokens} prompt tokens${cached}`,
    `${one.completion_tokens} written`,
    `first after ${number(one.first_token_ms, 0)} ms`,
    `${number(one.tokens_per_second)} tokens/s`,
    `${number(one.tokens_per_step, 2)} tokens per step`,
    one.drafted ? accepted : "no drafts",
  ];
  item.append(line("facts", facts.join(", ")));
  if (one.spans && one.spans.length) item.append(answer(one.spans));
  return item;
}

function line(kind, text) {
  const made = document.createElement("p");
  made.className = kind;
  made.textContent = text;
  return made;
}

function answer(spans) {
  const made = document.createElement("div");
  made.className = "answer";
  made.tabIndex = 0;
  made.setAttribute("role", "region");
  made.setAttribute("aria-label", "The answer, accepted draft tokens underlined");
  for (const [text, accepted] of spans) {
    const piece = document.createElement(accepted ? "mark" : "span");
    piece.textContent = text;
    made.append(piece);
  }
  return made;
}

ask();
