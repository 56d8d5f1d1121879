"use strict";
// The model of `reliamsg plan`, for the page: the formulas of reliamsg/plan/model.py, system.py and planning.py, which
// explain them. Tests compare the numbers with the command's.

const YEAR = 365.25 * 86400;
const GAUSS = [
  [0.06943184420297371, 0.17392742256872692],
  [0.33000947820757187, 0.32607257743127307],
  [0.6699905217924281, 0.32607257743127307],
  [0.9305681557970262, 0.17392742256872692],
];

const prod = (values) => values.reduce((product, value) => product * value, 1);

// -- rates and settings ------------------------------------------------------------------------------------------

function discardedSeconds(partitions) {
  switch (partitions.handling) {
    case "autoheal": return partitions.seconds;
    case "ignore": return partitions.seconds + partitions.resolve_seconds;
    case "pause_minority": return Math.min(partitions.seconds, partitions.detection_seconds);
    default: return 0;
  }
}

function hazard(site) {
  const discarded = site.partitions ? discardedSeconds(site.partitions) : 0;
  return {
    crashRate: site.crashes_per_year / YEAR,
    crashWindow: site.crash_loses_seconds,
    lossRate: site.losses_per_year / YEAR,
    outage: site.outage_seconds,
    confirm: site.confirm_seconds,
    splitRate: discarded ? site.partitions.per_year * site.partitions.losing_share / YEAR : 0,
    splitWindow: discarded,
  };
}

function confirmsNeeded(client, up) {
  switch (client.confirm) {
    case "all": return client.sites.length;
    case "any": return 1;
    case "all-active": return Math.max(1, up);
    default: return client.confirm;
  }
}

function systemOf(rates, client, kind = "reliamsg", only = null) {
  const { producer, consumer } = rates;
  const plain = kind !== "reliamsg";
  const perSecond = rates.traffic.messages_per_second * rates.traffic.message_bytes;
  const fill = plain ? Infinity : client.max_bytes / perSecond;
  return {
    kind,
    client,
    sites: (only ? [only] : client.sites.map((name) => rates.sites[name])).map(hazard),
    commonLoss: rates.all_sites.losses_per_year / YEAR,
    producerCrash: producer.crashes_per_year / YEAR,
    producerRestart: producer.restart_seconds,
    producerDisk: producer.disk_losses_per_year / YEAR,
    consumerCrash: consumer.outages_per_year / YEAR,
    consumerOutage: consumer.outage_seconds,
    inboxLoss: plain ? 0 : consumer.inbox_losses_per_year / YEAR,
    brokerWait: consumer.broker_wait_seconds + (plain ? consumer.inbox_wait_seconds : 0),
    inboxWait: plain ? 0 : consumer.inbox_wait_seconds,
    handle: consumer.handle_seconds,
    retain: plain ? 0 : Math.min(client.retain_seconds, client.retain_bytes / perSecond, fill),
    fill,
    keeps: client.release === "consumed",
    patience: client.on_gap === "skip" ? client.gap_timeout : Infinity,
  };
}

// -- the fate of a message -----------------------------------------------------------------------------------------

const unavailability = (rate, outage) => rate * outage / (1 + rate * outage);
const down = (site) => unavailability(site.crashRate + site.lossRate, site.outage);

function* situations(system) {
  const steps = { 1: 16, 2: 5, 3: 3 }[system.sites.length] ?? 2;
  const longest = Math.max(...system.sites.map((site) => site.outage));
  const together = unavailability(system.commonLoss, longest);
  let combined = [[1 - together, []]];
  for (const site of system.sites) {
    const share = down(site);
    const choices = [[1 - share, 0]];
    for (let step = 0; step < (share ? steps : 0); step++) {
      choices.push([share / steps, site.outage * (step + 0.5) / steps]);
    }
    combined = combined.flatMap(([weight, residuals]) =>
      choices.map(([own, residual]) => [weight * own, [...residuals, residual]]));
  }
  for (const [weight, residuals] of combined) yield* published(system, weight, residuals);
  for (let step = 0; step < (together ? steps : 0); step++) {
    const elapsed = longest * (step + 0.5) / steps;
    yield* published(system, together / steps, system.sites.map((site) => Math.max(0, site.outage - elapsed)));
  }
}

function* published(system, weight, residuals) {
  const arrivals = residuals.map((residual, at) => residual + system.sites[at].confirm);
  const needed = confirmsNeeded(system.client, residuals.filter((residual) => residual === 0).length);
  if (system.kind === "pika" && residuals[0]) return;
  const since = residuals.map((left, at) => [left, system.sites[at].outage - left]).filter(([left]) => left)
    .map(([, elapsed]) => elapsed).sort((a, b) => b - a);
  const spare = residuals.length - needed;
  if (since.length > spare && since[spare] > system.fill) return;
  yield { weight, arrivals, confirmedAt: [...arrivals].sort((a, b) => a - b)[needed - 1] };
}

function* whenDue(system, situation) {
  const away = unavailability(system.consumerCrash, system.consumerOutage);
  yield [1 - away, 0];
  if (!away) return;
  const due = Math.min(...situation.arrivals) + system.brokerWait;
  const ends = [released(system, situation), ...situation.arrivals,
    ...situation.arrivals.map((at, index) => at + system.sites[index].crashWindow)];
  const inside = ends.map((end) => end - due).filter((end) => end > 0 && end < system.consumerOutage);
  const cuts = [...new Set([0, ...inside, system.consumerOutage])].sort((a, b) => a - b);
  for (let at = 0; at + 1 < cuts.length; at++) {
    const [start, end] = [cuts[at], cuts[at + 1]];
    for (const [node, weight] of GAUSS) {
      yield [away * weight * (end - start) / system.consumerOutage, start + node * (end - start)];
    }
  }
}

function released(system, situation) {
  const everywhere = Math.max(...situation.arrivals);
  if (system.kind !== "reliamsg") return everywhere;
  if (system.keeps) return Infinity;
  return everywhere <= system.fill
    ? Math.max(everywhere, system.retain)
    : Math.max(system.fill, situation.confirmedAt);
}

function outcome(system, situation, away) {
  const until = released(system, situation);
  const arrivals = situation.arrivals.map((at) => (at <= until ? at : Infinity));
  const first = Math.min(...arrivals);
  const due = first + system.brokerWait + away;
  const reached = arrivals.map((_, site) => site).filter((site) => arrivals[site] < due);
  const missing = erased(system, arrivals, reached, due);
  const memory = memoryRate(system);
  const unsent = -Math.expm1(-memory * first);
  let atSites = lostWithDisk(system, arrivals, due, Math.min(until, due));
  const kept = Math.exp(-memory * Math.min(until, due));
  if (due > until) {
    atSites += kept * missing;
  } else {
    atSites += kept * prod(arrivals.map((at, site) =>
      (until - at > -Infinity ? stillSplit(system.sites[site], until - at) : 1)));
    atSites += lostDuringSplit(system, due - first, until - first);
  }
  const passed = passedOver(system, arrivals, due, until, missing);
  const received = Math.max(0, 1 - unsent - atSites - passed);
  const end = due + system.inboxWait + system.handle;
  const inInbox = received * lostInInbox(system, due, end, until);
  const gone = Math.max((1 - unsent) * missing, atSites + passed);
  return { unsent, gone, atSites, passed, inInbox, again: (received - inInbox) * again(system, end, until),
    reached: reached.length };
}

function memoryRate(system) {
  switch (system.kind) {
    case "reliamsg": return system.producerDisk;
    case "paho": return system.producerDisk + system.producerCrash;
    default: return 0;
  }
}

function erasedAt(site, age) {
  const window = site.lossRate * age + site.crashRate * Math.min(age, site.crashWindow);
  const hidden = unavailability(site.splitRate, site.splitWindow);
  return hidden + (1 - hidden) * -Math.expm1(-window);
}

function stillSplit(site, age) {
  const hidden = unavailability(site.splitRate, site.splitWindow);
  return hidden ? hidden * Math.max(0, 1 - Math.max(0, age) / site.splitWindow) : 0;
}

function erased(system, arrivals, sites, until) {
  if (!sites.length) return 1;
  const alone = prod(sites.map((site) => erasedAt(system.sites[site], until - arrivals[site])));
  const last = Math.max(...sites.map((site) => arrivals[site]));
  const common = -Math.expm1(-system.commonLoss * (until - last));
  return common + (1 - common) * alone;
}

function lostWithDisk(system, arrivals, due, until) {
  const rate = memoryRate(system);
  const times = arrivals.filter((at) => at < until).sort((a, b) => a - b);
  let lost = 0;
  times.forEach((start, index) => {
    const end = index + 1 < times.length ? times[index + 1] : until;
    const sites = arrivals.map((_, site) => site).filter((site) => arrivals[site] <= start);
    lost += Math.exp(-rate * start) * -Math.expm1(-rate * (end - start)) * erased(system, arrivals, sites, due);
  });
  return lost;
}

function lostDuringSplit(system, due, until) {
  const site = system.sites[0];
  const end = Math.min(site.splitWindow, until);
  if (system.sites.length > 1 || !site.splitRate || end <= due) return 0;
  let lost = 0;
  for (const [node, weight] of GAUSS) lost += weight * -Math.expm1(-memoryRate(system) * node * (end - due));
  return unavailability(site.splitRate, site.splitWindow) * lost * (end - due) / site.splitWindow;
}

function lostInInbox(system, due, end, until) {
  const keptUntil = Math.min(Math.max(due, until), end);
  let both = 0;
  for (const [node, weight] of GAUSS) {
    both += weight * -Math.expm1(-system.producerDisk * (due + node * (keptUntil - due)));
  }
  return -Math.expm1(-system.inboxLoss * ((end - keptUntil) + (keptUntil - due) * both));
}

function passedOver(system, arrivals, due, until, missingEverywhere) {
  if (system.patience === Infinity || system.kind !== "reliamsg") return 0;
  const away = arrivals.map((at, index) => {
    const site = system.sites[index];
    return at < due ? wentAway(site.crashRate + site.lossRate, site.outage - system.patience, due - at) : 1;
  });
  const unseen = arrivals.map((at, index) =>
    (at < due ? erasedAt(system.sites[index], due - at) * (1 - away[index]) + away[index] : 1));
  const missing = Math.max(0, prod(unseen) - prod(away));
  if (due > until) return Math.max(0, missing - missingEverywhere);
  const absent = wentAway(system.producerCrash, system.producerRestart - system.patience, due);
  return Math.max(missing, missingEverywhere) * absent;
}

const wentAway = (rate, longest, age) => -Math.expm1(-rate * Math.max(0, Math.min(age, longest)));

function again(system, end, until) {
  let expected = system.consumerCrash * system.handle;
  if (system.kind === "reliamsg") {
    expected += system.inboxLoss * (system.keeps ? system.client.status_interval : Math.max(0, until - end));
  } else {
    expected += system.sites[0].crashRate * system.sites[0].confirm;
  }
  return -Math.expm1(-expected);
}

function availability(system, accepted) {
  const up = 1 - unavailability(system.producerCrash, system.producerRestart);
  let blocked = 0;
  if (system.keeps && system.kind === "reliamsg") {
    const longer = Math.max(0, system.consumerOutage - system.fill);
    blocked = system.consumerCrash * longer / (1 + system.consumerCrash * system.consumerOutage);
  }
  const together = unavailability(system.commonLoss, Math.max(...system.sites.map((site) => site.outage)));
  let counts = [1];
  for (const site of system.sites) {
    const share = down(site);
    counts = Array.from({ length: counts.length + 1 }, (_, sites) =>
      (sites < counts.length ? counts[sites] * share : 0) + (sites ? counts[sites - 1] * (1 - share) : 0));
  }
  let met = 0;
  counts.forEach((share, sites) => { if (sites >= confirmsNeeded(system.client, sites)) met += share; });
  const reading = 1 - unavailability(system.consumerCrash, system.consumerOutage);
  return {
    accepting: up * accepted * (1 - blocked),
    confirming: (1 - together) * met,
    delivering: reading * (1 - together) * (1 - counts[0]),
  };
}

function fateOf(system) {
  let accepted = 0;
  let confirmSeconds = 0;
  const sums = { unsent: 0, gone: 0, atSites: 0, passed: 0, inInbox: 0, again: 0 };
  const confirmed = new Map();
  for (const situation of situations(system)) {
    accepted += situation.weight;
    confirmSeconds += situation.weight * situation.confirmedAt;
    for (const [share, away] of whenDue(system, situation)) {
      const weight = situation.weight * share;
      const found = outcome(system, situation, away);
      for (const name of Object.keys(sums)) sums[name] += weight * found[name];
      confirmed.set(found.reached, (confirmed.get(found.reached) ?? 0) + weight);
    }
  }
  for (const name of Object.keys(sums)) sums[name] /= accepted;
  const { unsent, gone, atSites, passed, inInbox } = sums;
  const start = system.kind === "reliamsg" ? "durable" : "in memory";
  const received = 1 - unsent - atSites - passed;
  const lost = unsent + atSites + inInbox;
  return {
    lost,
    declared: passed,
    missing: lost + passed,
    duplicated: sums.again,
    confirm_seconds: confirmSeconds / accepted,
    ...availability(system, accepted),
    edges: [
      ["accepted", start, 1],
      [start, "lost", unsent],
      [start, "queued", 1 - unsent],
      ["queued", "received", 1 - unsent - gone],
      ["queued", "erased", gone],
      ["erased", "received", gone - atSites - passed],
      ["erased", "declared missing", passed],
      ["erased", "lost", atSites],
      ["received", "delivered", received - inInbox],
      ["received", "lost", inInbox],
      ["delivered", "acknowledged", received - inInbox],
      ["acknowledged", "duplicated", sums.again],
    ],
    confirmed: [...confirmed].sort(([a], [b]) => a - b).map(([sites, weight]) => [sites, weight / accepted]),
  };
}

// -- the plan ------------------------------------------------------------------------------------------------------

function nameOf(client) {
  const sites = `${client.sites.length} site${client.sites.length > 1 ? "s" : ""}`;
  return `reliamsg, ${sites}, release=${client.release}, confirm=${client.confirm}`;
}

function compared(name, rates, fate) {
  const messages = rates.traffic.messages_per_second * YEAR * fate.accepting;
  return { name, fate, lost_per_year: fate.missing * messages, duplicated_per_year: fate.duplicated * messages };
}

function alternatives(rates, client) {
  const [first] = client.sites;
  const plain = { ...client, sites: [first], confirm: "all", release: "confirmed", on_gap: "hold" };
  const found = ["paho", "pika"].map((kind) => compared(
    `plain ${kind}, site ${first}`, rates, fateOf(systemOf(rates, plain, kind, rates.sites[first]))));
  if (rates.cluster) {
    found.push(compared("plain pika, one cluster", rates, fateOf(systemOf(rates, plain, "pika", rates.cluster))));
  }
  const policies = ["any"];
  for (let sites = 2; sites < client.sites.length; sites++) policies.push(sites);
  policies.push("all-active", "all");
  for (const release of ["confirmed", "consumed"]) {
    for (const confirm of policies) {
      const one = { ...client, release, confirm };
      found.push(compared(nameOf(one), rates, fateOf(systemOf(rates, one))));
    }
  }
  return found;
}

function valueAt(tree, path) {
  return path.reduce((found, name) => found[name], tree);
}

function withValue(tree, [name, ...rest], value) {
  return { ...tree, [name]: rest.length ? withValue(tree[name], rest, value) : value };
}

function pathsOf(rates, client) {
  const found = ["producer", "consumer", "all_sites"].flatMap((table) =>
    Object.keys(rates[table]).map((key) => [table, key]));
  for (const name of client.sites) {
    const { partitions, ...site } = rates.sites[name];
    found.push(...Object.keys(site).map((key) => ["sites", name, key]));
    if (partitions) {
      found.push(...["per_year", "seconds", "losing_share"].map((key) => ["sites", name, "partitions", key]));
    }
  }
  return found;
}

function influences(rates, client, fate) {
  const slope = (value, missing) => (value
    ? (missing(value * 1.01) - missing(value * 0.99)) / (2 * 0.01 * value)
    : missing(1e-3) / 1e-3 - fate.missing / 1e-3);
  const influence = (name, value, by) => ({
    name,
    value,
    elasticity: fate.missing ? by * value / fate.missing : 0,
    lost_per_incident: name.endsWith("per_year")
      ? Math.max(0, by * rates.traffic.messages_per_second * YEAR) : null,
  });
  const missing = (tried, one) => fateOf(systemOf(tried, one)).missing;
  const found = [];
  for (const path of pathsOf(rates, client)) {
    const value = valueAt(rates, path);
    if (value || path[path.length - 1].endsWith("per_year")) {
      found.push(influence(path.join("."), value,
        slope(value, (tried) => missing(withValue(rates, path, tried), client))));
    }
  }
  if (client.release === "confirmed") {
    found.push(influence("retain_seconds", client.retain_seconds,
      slope(client.retain_seconds, (tried) => missing(rates, { ...client, retain_seconds: tried }))));
  }
  return found.sort((a, b) => Math.abs(b.elasticity) - Math.abs(a.elasticity));
}

function makePlan(rates, client) {
  const own = compared(nameOf(client), rates, fateOf(systemOf(rates, client)));
  return { client: own, compared: alternatives(rates, client) };
}

// A number as the command prints it: Python's format ".3g".
function general(value, digits = 3) {
  if (value === 0) return "0";
  const [mantissa, power] = value.toExponential(digits - 1).split("e");
  const exponent = Number(power);
  const trimmed = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  if (exponent < -4 || exponent >= digits) {
    const size = String(Math.abs(exponent)).padStart(2, "0");
    return `${trimmed(mantissa)}e${exponent < 0 ? "-" : "+"}${size}`;
  }
  return trimmed(value.toFixed(Math.max(0, digits - 1 - exponent)));
}
