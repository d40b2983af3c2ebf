const KEPT = 300;
const history = new Map(); // imbalance of each pool, in percent, since the page was opened
let chosen = 0;

function polyline(svg, values, top, width, height) {
  const line = document.createElementNS(SVG, "polyline");
  const x = (i) => (width * i) / Math.max(1, values.length - 1);
  const y = (value) => height - 2 - ((height - 4) * value) / Math.max(top, 1e-9);
  line.setAttribute("points", values.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(" "));
  svg.replaceChildren(line);
}

function spark(values, top) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 120 24");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", "spark");
  polyline(svg, values, top, 120, 24);
  return svg;
}

function showNow(told, pool) {
  tiles("now", [
    ["policy", pool.policy],
    ["running", whole(pool.running)],
    ["waiting", whole(pool.waiting)],
    ["imbalance", percent(pool.imbalance_share)],
    ["idle KV tokens", whole(pool.imbalance)],
    ["mean step", millis(pool.step_s)],
    ["tokens a step", fixed(pool.tokens_per_step, 2)],
    ["rounds", whole(pool.rounds)],
    ["turned away", whole(Object.values(pool.turned_away).reduce((sum, count) => sum + count, 0))],
    ["router late by", millis(told.lag_s)],
    ["open calls", whole(told.open_calls)],
  ]);
  byId("problem").textContent = pool.problem;
  byId("problem").hidden = !pool.problem;
  const values = history.get(pool.name);
  const top = Math.max(1, ...values);
  polyline(byId("chart"), values, top, 600, 120);
  byId("chart-caption").textContent = `Imbalance since this page was opened, five minutes at most; top of the chart: ${top.toFixed(1)} %`;
}

function showWorkers(pool) {
  const top = Math.max(1, ...pool.workers.flatMap((worker) => worker.window || [worker.load]));
  const heads = ["worker", "", "load", "of capacity", "running", "slots", "queued", `next ${pool.steps[pool.steps.length - 1]} steps`];
  table("workers", heads, pool.workers.map((worker) => [
    [worker.name, "name"], worker.up ? ["up", "good"] : ["down", "bad"], whole(worker.load),
    percent(known(worker.capacity) ? worker.load / worker.capacity : null), whole(worker.active), whole(worker.slots),
    whole(worker.queued), worker.window ? spark(worker.window, top) : "–",
  ]), "");
}

function showRequests(pool) {
  table("waiting", ["prompt tokens", "waits for", "overtaken"],
    pool.oldest.map((one) => [whole(one.prompt_tokens), `${one.wait_s.toFixed(1)} s`, whole(one.overtaken)]), "Nothing waits.");
  const heads = ["time", "worker", "prompt tokens", "waited", "load before", "heaviest", "waiting", "policy", "why"];
  table("decisions", heads, pool.decisions.map((one) => [
    new Date(1000 * one.at).toISOString().slice(11, 23), [pool.workers[one.worker].name, "name"], whole(one.prompt_tokens),
    `${one.wait_s.toFixed(2)} s`, whole(one.load), whole(one.heaviest), whole(one.waiting), [one.policy, "name"], [one.why, "name"],
  ]), "None since this page was opened.");
}

function showForecasts(pool) {
  byId("prices-section").hidden = pool.prices === null;
  table("prices", ["resource", "workers", "steps from now", "price"], (pool.prices || [])
    .map((one) => [one.resource, [one.workers, "name"], `${one.first}–${one.last}`, fixed(one.price, 2)]), "Nothing is scarce.");
  byId("forecasts-section").hidden = pool.forecast === null;
  if (pool.forecast === null) return;
  byId("bundle").textContent = pool.forecast.bundle;
  tiles("forecasts", [
    ["state", pool.forecast.up ? "in time" : `down: ${pool.forecast.problem}`],
    ["proved true", percent(pool.forecast.skill)],
    ["late jobs", whole(pool.forecast.late)],
    ["failed jobs", whole(pool.forecast.failures)],
    ["admitted with the prior", whole(pool.forecast.priors)],
  ]);
  table("calibration", ["requests", "expected", "happened"], pool.calibration
    .map((row) => [whole(row.requests), fixed(row.expected, 1), fixed(row.happened, 1)]),
    "Not known: no request has ended yet, or the router keeps no access log (log.path).");
}

function choosePool(told) {
  const names = told.pools.map((pool) => pool.name);
  const select = byId("pool");
  byId("choice").hidden = names.length < 2;
  if (names.join("\n") !== [...select.options].map((option) => option.textContent).join("\n")) {
    select.replaceChildren(...names.map((name) => element("option", name)));
    chosen = 0;
  }
  return told.pools[chosen];
}

function show(told) {
  byId("version").textContent = told.endcast;
  for (const pool of told.pools) {
    const values = history.get(pool.name) || [];
    history.set(pool.name, [...values, 100 * pool.imbalance_share].slice(-KEPT));
  }
  const pool = choosePool(told);
  const down = pool.workers.filter((worker) => !worker.up).length;
  const blind = pool.forecast !== null && !pool.forecast.up;
  const words = [told.draining ? "draining" : "routing", down ? `${down} of ${pool.workers.length} workers down` : "", blind ? "without forecasts" : ""];
  badge(words.filter(Boolean).join(", "), !told.draining && !down && !blind);
  showNow(told, pool);
  showWorkers(pool);
  showRequests(pool);
  showForecasts(pool);
  byId("figures").hidden = false;
}

const refresh = watch({ path: "live", storage: "endcast-router-key", who: "router", everyMs: 1000, show });
byId("pool").addEventListener("change", () => {
  chosen = byId("pool").selectedIndex;
  refresh();
});
