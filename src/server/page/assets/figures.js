// Figures derived from snapshots: percentiles, differences of counters, loads of experts. No elements.

// The value below which the fraction `q` of a histogram's values lies, in the unit of its bounds. Interpolates within a
// bucket. Null without values.
export function quantile(bounds, counts, q) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (!total) return null;
  let below = 0;
  for (let i = 0; i < counts.length; ++i) {
    if (below + counts[i] >= q * total && counts[i] > 0) {
      if (i >= bounds.length) return bounds.at(-1);
      const low = i ? bounds[i - 1] : 0;
      return low + (bounds[i] - low) * (q * total - below) / counts[i];
    }
    below += counts[i];
  }
  return bounds.at(-1);
}

export const difference = (now, before) => now.map((count, i) => count - before[i]);

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return (value * 1e6).toFixed(0) + " µs";
  if (value < 0.1) return (value * 1e3).toFixed(1) + " ms";
  return value < 1 ? (value * 1e3).toFixed(0) + " ms" : value.toFixed(value < 10 ? 2 : 1) + " s";
}

export function short(value) {
  if (!Number.isFinite(value)) return "–";
  for (const [size, unit] of [[1e9, " G"], [1e6, " M"], [1e4, " k"]])
    if (Math.abs(value) >= size) return (value / (unit === " k" ? 1e3 : size)).toFixed(1) + unit;
  return Math.abs(value) < 10 && value % 1 ? value.toFixed(1) : value.toFixed(0);
}

// Rows of `counts` [layers × columns] with a sum above 0, each divided by its mean. Dense layers have no counts.
export function heatOf(counts, columns) {
  const rows = [];
  for (let layer = 0; layer * columns < counts.length; ++layer) {
    const row = counts.slice(layer * columns, (layer + 1) * columns);
    const total = row.reduce((sum, count) => sum + count, 0);
    if (total > 0) rows.push({layer, heat: row.map(count => count * columns / total), counts: row});
  }
  return rows;
}

// The load of each slot, as rows of heatOf with the list `experts` of each row: an expert's tokens are divided by its
// replicas. `layers`: the experts in the slots of each layer, null for dense layers. `counts`: [layers × experts].
export function slotHeat(layers, counts, experts) {
  const rows = [];
  layers.forEach((slots, layer) => {
    if (!slots) return;
    const replicas = new Map();
    for (const expert of slots) replicas.set(expert, (replicas.get(expert) ?? 0) + 1);
    const loads = slots.map(expert => counts[layer * experts + expert] / replicas.get(expert));
    rows.push({layer, experts: slots, replicas, counts: loads, heat: heatOf(loads, slots.length)[0]?.heat ?? loads});
  });
  return rows;
}

// Mean over layers of the mean load of the ranks divided by the greatest load. Null without rows.
export function balancednessOf(counts, ranks) {
  const rows = heatOf(counts, ranks);
  if (!rows.length) return null;
  return rows.reduce((sum, row) => sum + 1 / Math.max(...row.heat), 0) / rows.length;
}

// Counts in which each second of traffic weighs 0.75 times the next one. Without traffic they stay as they are.
export class RecentCounts {
  static DECAY = 0.75;
  recent = null;
  last = null;

  // `counts`: since the start of the ranks. Returns the change since the last call; null if there was none.
  add(counts) {
    const last = this.last?.length === counts.length && counts.every((count, i) => count >= this.last[i]) ? this.last : null;
    const known = this.last !== null && last !== null;
    this.last = counts;
    if (!known) {
      this.recent = null;
      return null;
    }
    const change = difference(counts, last);
    if (!change.some(count => count > 0)) return null;
    this.recent = this.recent ? this.recent.map((count, i) => count * RecentCounts.DECAY + change[i]) : change;
    return change;
  }
}
