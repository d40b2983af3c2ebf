function showNow(told) {
  const last = told.rates.filter((rate) => rate.at > told.now - 30);
  const mean = (name) => (last.length ? last.reduce((sum, rate) => sum + rate[name], 0) / last.length : 0);
  const latest = [...told.rates].reverse().find((rate) => known(rate.p99_s));
  const one = told.processes > 1 ? ` (process ${told.process})` : "";
  tiles("now", [
    ["forecasts/s" + one, whole(mean("forecasts_per_s"))],
    ["calls/s", fixed(mean("calls_per_s"), 1)],
    ["errors/s", fixed(mean("errors_per_s"), 1)],
    ["median call", millis(latest && latest.p50_s)],
    ["p99 call", millis(latest && latest.p99_s)],
    ["waiting calls", whole(told.waiting_calls)],
    ["open streams", whole(told.open_streams)],
    ["degraded forecasts", whole(told.degraded_forecasts)],
    ["up", `${(told.uptime_s / 3600).toFixed(1)} h`],
  ]);
  const rates = told.rates.map((rate) => rate.forecasts_per_s);
  const top = Math.max(1, ...rates);
  const line = document.createElementNS(SVG, "polyline");
  const x = (i) => (600 * i) / Math.max(1, rates.length - 1);
  line.setAttribute("points", rates.map((rate, i) => `${x(i).toFixed(1)},${(115 - (110 * rate) / top).toFixed(1)}`).join(" "));
  byId("chart").replaceChildren(line);
  byId("chart-caption").textContent = `Forecasts per second, ten minutes at most; top of the chart: ${whole(top)}`;
}

function horizonCells(row) {
  return [whole(row.forecasts), percent(row.forecast), percent(row.happened), fixed(row.brier, 4), fixed(row.ece, 4)];
}

function showCalibration(told) {
  const heads = ["horizon", "forecasts", "forecast", "happened", "Brier score", "calibration error"];
  table("calibration", heads, told.calibration.filter((row) => row.forecasts > 0)
    .map((row) => [`${row.horizon} tokens`, ...horizonCells(row)]),
    "No outcome of a forecast is known yet: POST /v1/outcomes tells them.");
  table("quantiles", ["quantile", "forecasts", "within it", "stated"], told.quantiles.filter((row) => row.forecasts > 0)
    .map((row) => [percent(row.quantile), whole(row.forecasts), percent(row.coverage), percent(row.stated)]), "");
  const groups = told.groups.flatMap((group) => group.horizons.filter((row) => row.forecasts > 0)
    .map((row) => [[group.name, "name"], group.kind, `${row.horizon}`, ...horizonCells(row)]));
  byId("groups-section").hidden = !groups.length;
  table("groups", ["name", "kind", ...heads], groups, "");
}

function showDrift(drift) {
  byId("drift-words").textContent = drift ? drift.explanation : "This forecaster has no grid to watch.";
  byId("drift-words").className = drift && drift.alarm ? "bad" : "";
  table("drift", ["measure", "happened", "forecast", "z", ""], (drift ? drift.measures : [])
    .map((row) => [row.measure, fixed(row.happened, 1), fixed(row.forecast, 1), fixed(row.z, 2),
      row.alarm ? ["alarm", "bad"] : ""]), "");
}

function showShadow(shadow) {
  byId("shadow-section").hidden = !shadow;
  if (!shadow) return;
  byId("shadow-words").textContent = `${shadow.bundle}: ${shadow.verdict}, after ${whole(shadow.generations)} generations`;
  table("shadow", ["horizon", "Brier score, shadow less served"],
    Object.entries(shadow.differences).map(([horizon, difference]) => [horizon, fixed(difference, 5)]), "");
}

function showCard(told) {
  byId("bundle").textContent = told.bundle;
  const rows = Object.entries(told.card).map(([name, value]) => {
    const row = element("tr");
    const cell = element("td", undefined, "name");
    cell.append(element("pre", typeof value === "object" ? JSON.stringify(value, null, 1) : String(value)));
    row.append(element("td", name), cell);
    return row;
  });
  const made = element("table");
  made.append(...rows);
  byId("card").replaceChildren(rows.length ? made : element("p", "It says nothing of itself.", "hint"));
}

function show(told) {
  byId("version").textContent = told.endcast;
  const alarm = told.drift !== null && told.drift.alarm;
  badge(told.status === "ready" && alarm ? "ready, drifting" : told.status, told.status === "ready" && !alarm);
  showNow(told);
  showCalibration(told);
  showDrift(told.drift);
  showShadow(told.shadow);
  tiles("outcomes", Object.entries(told.outcomes).map(([name, count]) => [name, whole(count)]));
  showCard(told);
  byId("figures").hidden = false;
}

watch({ path: "v1/status", storage: "endcast-key", who: "service", everyMs: 5000, show });
