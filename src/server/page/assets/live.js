// The live view: one snapshot of the server a second (docs/page.md).
import {events, request} from "./api.js";
import {Chart} from "./chart.js";
import {byId, choiceOf, make, setText} from "./dom.js";
import {balancednessOf, difference, heatOf, quantile, RecentCounts, seconds, short, slotHeat} from "./figures.js";
import {HeatMap, showLegend} from "./heatmap.js";

const WINDOW_MS = 60_000;  // of latencies
const STAGES = [{name: "dispatch", color: "--series-1"}, {name: "experts", color: "--series-2"}, {name: "combine", color: "--series-3"}];
const experts = new RecentCounts(), ranks = new RecentCounts();
const times = new RecentCounts();  // of the stages of each rank, then the number of timed passes
const history = [];  // {time, snapshot} of the last minute
let span = "recent", shown = null, placement = null, maps = null, charts = null, lastEplb = null;

const sum = (list, field) => list.reduce((total, each) => total + each[field], 0);
const clock = () => new Date().toLocaleTimeString([], {hour12: false});

// The stages of each rank as a stacked bar, as long as the rank's time compared with the longest one.
function drawStages(values) {
  const passes = values?.at(-1) ?? 0;
  byId("stages-card").hidden = !(passes > 0 && values.length > 1);
  if (byId("stages-card").hidden) return;
  const rows = [];
  for (let at = 0; at + 1 < values.length; at += STAGES.length)
    rows.push(values.slice(at, at + STAGES.length).map(time => time / passes / 1e9));
  const total = row => row.reduce((sum, time) => sum + time, 0), longest = Math.max(...rows.map(total), 1e-12);
  byId("stages").tBodies[0].replaceChildren(...rows.map((row, rank) => {
    const parts = row.map((time, i) => {
      const part = make("i");
      part.style.width = 100 * time / longest + "%";
      part.style.background = `var(${STAGES[i].color})`;
      return part;
    });
    return make("tr", {}, make("th", {scope: "row"}, String(rank)), ...row.map(time => make("td", {}, seconds(time))),
                make("td", {}, make("span", {class: "meter stacked", "aria-hidden": "true"}, ...parts)));
  }));
}

function drawPlacement(counts) {
  byId("placement-card").hidden = !placement || !counts;
  if (byId("placement-card").hidden) return;
  const rows = slotHeat(placement.layers, counts, shown.experts), begins = [];
  placement.slots_of_ranks.reduce((begin, count) => (begins.push(begin), begin + count), 0);
  placement.begins = begins;
  const slots = rows[0]?.experts.length ?? 0;
  setText("placement-facts", `${slots} slots, ${shown.experts} experts, ${begins.length} ranks`);
  maps.slots.set(rows, slots, begins.slice(1));
}

function nameOfSlot(row, slot) {
  const expert = row.experts[slot], count = row.replicas.get(expert);
  const rank = placement.begins.findLastIndex(begin => begin <= slot);
  return `slot ${slot} on rank ${rank} has expert ${expert}` + (count > 1 ? ` (${count} replicas)` : "");
}

function drawHeat() {
  if (!shown) return;
  const countsOf = recent => span === "recent" && recent.recent ? recent.recent : recent.last;
  drawStages(countsOf(times));
  drawPlacement(countsOf(experts));
  maps.experts.set(heatOf(countsOf(experts), shown.experts), shown.experts);
  maps.ranks.set(heatOf(countsOf(ranks), shown.ranks), shown.ranks);
}

function hintOf(snapshot) {
  if (!snapshot.model.has_experts) return "This model has no routed experts.";
  if (!snapshot.counts_experts)
    return "The server does not count expert load. Start it with --enable-expert-distribution-metrics.";
  if (snapshot.experts === null && !shown) return "The ranks have not sent the expert load yet.";
  return shown || snapshot.experts?.passes ? "" : "No pass yet: send a request.";
}

function showExperts(time, snapshot) {
  const load = snapshot.experts, moved = snapshot.eplb?.placement;
  let balance = null;
  if (moved) placement = moved;
  if (moved && !load?.logical_count) drawHeat();
  if (load?.logical_count) {
    if (shown && (shown.experts !== load.experts || shown.ranks !== load.ranks)) shown = null;
    experts.add(load.logical_count);
    times.add([...load.stage_times, load.timed_passes]);
    const change = ranks.add(load.rank_count);
    if (change && load.ranks > 1) balance = balancednessOf(change, load.ranks);
    if (load.passes > 0) shown = load;
    drawHeat();
  }
  const hint = hintOf(snapshot);
  setText("experts-hint", hint);
  byId("experts-hint").hidden = hint === "";
  byId("experts-body").hidden = !shown;
  byId("ranks-body").hidden = !shown || shown.ranks < 2;
  const hasRanks = (shown?.ranks ?? 0) > 1;
  byId("balance-card").parentElement.hidden = !hasRanks && snapshot.eplb === null;
  byId("balance-card").hidden = !hasRanks;
  charts.balance.add(time, [balance]);
  if (balance !== null) setText("balance-now", balance.toFixed(2));
}

function logMigration(text) {
  const log = byId("migration-log");
  log.prepend(make("li", {}, make("time", {}, clock()), text));
  while (log.children.length > 100) log.lastChild.remove();
}

function showMigrations(snapshot) {
  const now = snapshot.eplb, before = lastEplb;
  byId("migration-card").hidden = now === null && before === null && !snapshot.model.has_experts;
  if (now === null) {
    if (before === null) {
      setText("migration-state", "off");
      if (!byId("migration-log").children.length)
        byId("migration-log").append(make("li", {class: "quiet"}, "Start the server with --enable-eplb to balance expert load."));
    }
    return;
  }
  lastEplb = now;
  const r = now.rebalance, moves = r.layers_to_move > 0 && r.layers_done < r.layers_to_move;
  setText("migration-state", moves ? `${r.layers_done} of ${r.layers_to_move} layers` : now.state);
  const progress = byId("migration-progress");
  progress.hidden = !moves;
  progress.max = Math.max(1, r.layers_to_move);
  progress.value = r.layers_done;
  if (before === null) {
    byId("migration-log").replaceChildren();
    logMigration(now.rebalances ? `${now.rebalances} migrations, ${now.layers_moved} layers moved so far` : "none so far");
    return;
  }
  if (now.plans > before.plans)
    logMigration(`plan ${now.plans}` + (r.planned_at_balancedness === null ? "" : ` at balancedness ${r.planned_at_balancedness.toFixed(2)}`) +
                 (r.trigger === "iterations" ? "" : `, ${r.trigger}`));
  if (now.rebalances > before.rebalances) {
    logMigration(now.last_result || "migration completed");
  } else if (now.layers_moved > before.layers_moved) {
    const count = now.layers_moved - before.layers_moved;
    logMigration(`${count} ${count === 1 ? "layer" : "layers"} moved`);
  }
  if (now.failures > before.failures) logMigration("failed: " + now.last_failure);
}

function rateOf(field, seconds, groups, before) {
  if (!before?.length || before.length !== groups.length || seconds <= 0) return null;
  const change = sum(groups, field) - sum(before, field);
  return change < 0 ? null : change / seconds;
}

function showGroups(time, snapshot, previous) {
  const groups = snapshot.groups;
  if (!groups?.length) return;
  const before = previous?.snapshot.groups;
  const elapsed = previous ? (time - previous.time) / 1000 : 0;
  const total = sum(groups, "total_pages"), free = sum(groups, "free_pages"), cached = sum(groups, "cached_pages");
  const used = total - free - cached, size = groups[0].page_size;
  const decode = rateOf("decode_tokens", elapsed, groups, before), prefill = rateOf("prefill_tokens", elapsed, groups, before);
  const running = sum(groups, "running_requests"), waiting = sum(groups, "waiting_requests");
  setText("tile-running", String(running));
  setText("tile-waiting", `${waiting} waiting`);
  setText("tile-rate", short(decode ?? 0) + " /s");
  setText("tile-prefill", "prompt " + short(prefill ?? 0) + " /s");
  setText("tile-kv", total ? Math.round(100 * used / total) + " %" : "–");
  setText("tile-kv-tokens", `${short(used * size)} of ${short(total * size)}`);
  if (decode !== null) charts.rate.add(time, [decode, prefill]);
  charts.batch.add(time, [running, waiting]);
  const rows = groups.map((group, i) => {
    const own = group.total_pages - group.free_pages - group.cached_pages;
    const share = part => 100 * part / Math.max(1, group.total_pages);
    const bar = make("i");
    bar.style.width = share(own) + "%";
    return make("tr", {}, make("th", {scope: "row"}, String(i)), make("td", {}, String(group.running_requests)),
                make("td", {}, String(group.waiting_requests)), make("td", {}, Math.round(share(own)) + " %"),
                make("td", {}, make("span", {class: "meter", "aria-hidden": "true"}, bar)));
  });
  byId("groups").tBodies[0].replaceChildren(...rows);
  const {pp, tp, dp, ep} = snapshot.layout, {epoch, deaths} = snapshot.ranks;
  setText("ranks-facts", (pp > 1 ? `pp ${pp} · ` : "") + `tp ${tp} · ep ${ep} · dp ${dp}` + (epoch > 1 ? ` · start ${epoch}, ${deaths} deaths` : ""));
}

function showLatency(time, snapshot) {
  const old = history.find(entry => entry.time >= time - WINDOW_MS)?.snapshot;
  const names = [["first_token", "ttft"], ["inter_token", "itl"]];
  let recent = false;
  for (const [field, id] of names) {
    const {bounds, counts} = snapshot[field];
    let part = old ? difference(counts, old[field].counts) : counts;
    if (part.some(count => count > 0)) recent ||= old !== undefined;
    else part = counts;
    const values = [0.5, 0.9, 0.99].map(q => seconds(quantile(bounds, part, q)));
    const cells = byId("row-" + id).querySelectorAll("td");
    cells.forEach((cell, i) => { cell.textContent = values[i]; });
    setText("tile-" + id, values[0]);
    setText(`tile-${id}-99`, "p99 " + values[2]);
  }
  setText("latency-span", recent ? "last minute" : "since the start");
}

function show(snapshot, onSnapshot) {
  const time = Date.now(), previous = history.at(-1);
  onSnapshot(snapshot);
  showExperts(time, snapshot);
  showMigrations(snapshot);
  showGroups(time, snapshot, previous);
  showLatency(time, snapshot);
  history.push({time, snapshot: {...snapshot, experts: null}});
  while (history[0].time < time - WINDOW_MS) history.shift();
}

const pause = ms => new Promise(resolve => setTimeout(resolve, ms));
const visible = () => document.visibilityState === "visible";
const untilVisible = () => visible() ? Promise.resolve() : new Promise(resolve =>
  document.addEventListener("visibilitychange", resolve, {once: true}));

// Reads the feed, and connects again after a failure. A hidden page does not listen.
async function listen(onSnapshot, onState) {
  for (let wait = 1000; ; wait = Math.min(2 * wait, 15_000)) {
    await untilVisible();
    const abort = new AbortController();
    const hide = () => { if (!visible()) abort.abort(); };
    document.addEventListener("visibilitychange", hide);
    let problem = "the server does not answer";
    try {
      for await (const data of events(await request("dashboard/events", {signal: abort.signal}, false))) {
        wait = 1000;
        byId("live-notice").hidden = true;
        show(JSON.parse(data), onSnapshot);
      }
    } catch (error) {
      if (error.status) problem = error.message;
      else if (!(error instanceof TypeError) && error.name !== "AbortError") console.error(error);
    }
    document.removeEventListener("visibilitychange", hide);
    if (abort.signal.aborted) continue;
    onState("offline");
    setText("live-notice", `No live data: ${problem}. Trying again.`);
    byId("live-notice").hidden = false;
    await pause(wait);
  }
}

export function startLive(onSnapshot, onState) {
  const two = ["--series-1", "--series-2"];
  const rate = [{name: "output", color: two[0]}, {name: "prompt", color: two[1]}];
  const batch = [{name: "running", color: two[0]}, {name: "waiting", color: two[1]}];
  showLegend(byId("rate-legend"), rate);
  showLegend(byId("batch-legend"), batch);
  showLegend(byId("stages-legend"), STAGES);
  charts = {
    balance: new Chart(byId("chart-balance"), {label: "Balancedness", series: [{name: "balancedness", color: two[0]}], top: 1,
                                              format: value => String(Number(value.toFixed(2)))}),
    rate: new Chart(byId("chart-rate"), {label: "Tokens per second", series: rate, least: 10, format: short}),
    batch: new Chart(byId("chart-batch"), {label: "Requests", series: batch, least: 4, whole: true, format: short}),
  };
  maps = {
    experts: new HeatMap(byId("heat-experts"), byId("heat-experts-cell"), {top: 3, column: "expert", unit: "tokens"}),
    ranks: new HeatMap(byId("heat-ranks"), byId("heat-ranks-cell"), {top: 2, column: "rank", unit: "rows"}),
    slots: new HeatMap(byId("heat-slots"), byId("heat-slots-cell"), {top: 3, column: "slot", unit: "tokens", name: nameOfSlot}),
  };
  choiceOf([byId("span-recent"), byId("span-start")], "aria-checked", button => {
    span = button.id === "span-recent" ? "recent" : "start";
    drawHeat();
  });
  listen(onSnapshot, onState);
}
