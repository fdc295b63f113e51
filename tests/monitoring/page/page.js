// Draws the dashboard of the address: ?dashboard=fleet&node=gpu-v100&from=SECONDS&to=SECONDS[&row=TITLE][&prometheus=http://...], or one
// row of it. Other parameters are values of its variables.
// Ends with document.title "done", and the number of panels without data and with an error in #grid's data.
'use strict';

const asked = new URLSearchParams(location.search);
const prometheus = asked.get('prometheus') || '';
const colors = ['#73bf69', '#f2cc0c', '#5794f2', '#ff9830', '#f2495c', '#b877d9', '#8ab8ff', '#fade2a', '#96d98d', '#ffa6b0', '#ca95e5', '#c0d8ff'];
const named = { green: '#299c46', red: '#d10e5c', orange: '#e0752d', blue: '#3274d9', transparent: 'transparent', text: '#ccccdc' };
const color = (name) => named[name] || name;
const element = (tag, attributes, ...children) => {
  const made = document.createElement(tag);
  Object.assign(made, attributes);
  made.append(...children);
  return made;
};

let range; // from, to and step in seconds
let variables;

const substituted = (text) => text
  .replaceAll('$__rate_interval', `${Math.max(range.step + range.interval, 4 * range.interval)}s`)
  .replaceAll('$__interval', `${range.step}s`)
  .replace(/\$\{?(\w+)\}?/g, (all, name) => variables[name] ?? all);

async function query(expr, instant) {
  const parameters = instant
    ? { query: substituted(expr), time: range.to }
    : { query: substituted(expr), start: range.from, end: range.to, step: range.step };
  const answer = await fetch(`${prometheus}/api/v1/${instant ? 'query' : 'query_range'}?${new URLSearchParams(parameters)}`);
  const content = await answer.json();
  if (content.status !== 'success') throw new Error(`${content.error}: ${parameters.query}`);
  return content.data.result;
}

const legend = (format, metric) => {
  if (format) return format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => metric[label] ?? '');
  const { __name__: name = '', ...labels } = metric;
  return `${name}{${Object.entries(labels).map(([label, value]) => `${label}="${value}"`).join(', ')}}`;
};

function shown(value, { unit = 'short', decimals } = {}) {
  const fixed = (number, most) => decimals !== undefined && decimals !== null ? number.toFixed(decimals) : String(+number.toFixed(most));
  if (unit === 'percentunit') return `${fixed(value * 100, 1)} %`;
  if (unit === 's') {
    const size = Math.abs(value);
    if (value === 0) return '0 s';
    if (size < 0.001) return `${fixed(value * 1e6, 0)} µs`;
    if (size < 1) return `${fixed(value * 1000, 1)} ms`;
    if (size < 120) return `${fixed(value, 2)} s`;
    return size < 3600 ? `${fixed(value / 60, 1)} min` : `${fixed(value / 3600, 1)} h`;
  }
  if (unit === 'bytes') {
    const power = Math.min(4, Math.max(0, Math.floor(Math.log2(Math.abs(value) || 1) / 10)));
    return power === 0 ? `${value} B` : `${fixed(value / 1024 ** power, 2)} ${'KMGT'[power - 1]}iB`;
  }
  const suffix = { ops: ' ops/s', wps: ' wr/s' }[unit] || '';
  if (Math.abs(value) >= 10000) return `${+(value / 1000).toFixed(1)} K${suffix}`;
  return fixed(value, 2) + suffix;
}

function threshold(steps, value) {
  let found = steps[0];
  for (const step of steps) if (step.value === null || value >= step.value) found = step;
  return color(found.color);
}

const empty = (panel) => element('div', { className: 'empty', textContent: panel.fieldConfig.defaults.noValue || 'No data' });

const draw = {
  async stat(panel, body, frame) {
    const defaults = panel.fieldConfig.defaults;
    const [series] = await query(panel.targets[0].expr, true);
    if (!series) {
      frame.append(element('div', { className: 'stat', textContent: defaults.noValue || 'No data' }));
      // As Grafana does: the colour below all thresholds.
      frame.style.background = color(defaults.thresholds.steps[0].color);
      return !defaults.noValue;
    }
    const value = Number(series.value[1]);
    const text = panel.options.textMode === 'name' ? legend(panel.targets[0].legendFormat, series.metric) : shown(value, defaults);
    const stat = element('div', { className: 'stat', textContent: text });
    stat.style.fontSize = `${Math.min(40, 1.5 * frame.clientWidth / Math.max(text.length, 3))}px`;
    frame.style.background = threshold(defaults.thresholds.steps, value);
    frame.append(stat);
    return false;
  },

  async table(panel, body) {
    const rows = new Map();
    const columns = new Set();
    const organize = panel.transformations.find((step) => step.id === 'organize').options;
    const merge = panel.transformations.some((step) => step.id === 'merge');
    for (const [at, target] of panel.targets.entries()) {
      for (const { metric, value } of await query(target.expr, true)) {
        const key = JSON.stringify(metric);
        const row = rows.get(key) || { ...metric };
        row[merge ? `Value #${target.refId}` : 'Value'] = Number(value[1]);
        rows.set(key, row);
        Object.keys(row).forEach((name) => columns.add(name));
      }
    }
    if (rows.size === 0) {
      body.append(empty(panel));
      return true;
    }
    const order = organize.indexByName;
    const names = [...columns].filter((name) => !organize.excludeByName[name]).sort((one, other) => (order[one] ?? 99) - (order[other] ?? 99));
    const renamed = (name) => organize.renameByName[name] || name;
    const property = (name, id) => panel.fieldConfig.overrides
      .filter((override) => override.matcher.options === renamed(name))
      .flatMap((override) => override.properties).find((found) => found.id === id)?.value;
    const table = element('table', {}, element('tr', {}, ...names.map((name) => element('th', { textContent: renamed(name) }))));
    const sorted = [...rows.values()];
    for (const { displayName, desc } of panel.options.sortBy) {
      const name = names.find((found) => renamed(found) === displayName);
      sorted.sort((one, other) => (desc ? -1 : 1) * ((one[name] ?? -1) - (other[name] ?? -1)));
    }
    for (const row of sorted) {
      table.append(element('tr', {}, ...names.map((name) => {
        const cell = element('td', {});
        const links = property(name, 'links');
        const unit = property(name, 'unit');
        const value = unit ? shown(row[name] ?? NaN, { unit, decimals: property(name, 'decimals') }) : String(row[name]);
        const text = row[name] === undefined ? '' : value;
        cell.append(links ? element('a', { href: '#', textContent: text }) : text);
        const steps = property(name, 'thresholds')?.steps;
        if (steps && property(name, 'custom.cellOptions')) cell.style.background = threshold(steps, row[name]);
        return cell;
      })));
    }
    body.append(table);
    return false;
  },

  async bargauge(panel, body) {
    const defaults = panel.fieldConfig.defaults;
    const all = await query(panel.targets[0].expr, true);
    for (const { metric, value } of all) {
      const part = Math.min(1, Math.max(0, (Number(value[1]) - (defaults.min || 0)) / ((defaults.max || 1) - (defaults.min || 0))));
      const bar = element('div', {});
      bar.style.width = `${100 * part}%`;
      bar.style.background = threshold(defaults.thresholds.steps, Number(value[1]));
      body.append(element('div', { className: 'gauge' },
        element('div', { textContent: legend(panel.targets[0].legendFormat, metric) }),
        element('div', {}, bar), element('div', { textContent: shown(Number(value[1]), defaults) })));
    }
    if (all.length === 0) body.append(empty(panel));
    return all.length === 0;
  },

  async timeseries(panel, body) {
    const { defaults, overrides } = panel.fieldConfig;
    const custom = defaults.custom;
    const lines = await seriesOf(panel);
    if (lines.length === 0) {
      body.append(empty(panel));
      return true;
    }
    for (const line of lines) {
      const properties = overrides.filter((override) => override.matcher.options === line.name).flatMap((override) => override.properties);
      line.unit = properties.find((property) => property.id === 'unit')?.value || defaults.unit;
      // Of overrides, pages know the unit and the axis; such a series is a line.
      line.right = properties.some((property) => property.id === 'custom.axisPlacement' && property.value === 'right');
    }
    const stacked = custom.stacking.mode === 'normal';
    const times = [];
    for (let at = range.from; at <= range.to; at += range.step) times.push(at);
    const below = new Map();
    for (const line of lines) {
      line.points = times.map((at) => {
        const value = line.values.get(at);
        if (value === undefined) return null;
        const base = stacked && !line.right ? below.get(at) || 0 : 0;
        if (!line.right) below.set(at, base + value);
        return [at, base, base + value];
      });
    }
    lines.forEach((line, number) => { line.color = colors[number % colors.length]; });
    const names = legends(lines);
    body.append(names);
    const limit = custom.thresholdsStyle.mode === 'line' ? defaults.thresholds.steps.at(-1).value : null;
    const [width, height, left, bottom] = [body.clientWidth, body.clientHeight - names.offsetHeight - 3, 54, 16];
    const [plotWidth, plotHeight] = [width - left - (lines.some((line) => line.right) ? 54 : 8), height - bottom - 6];
    const parts = [];
    const unit = (right) => lines.find((line) => line.right === right)?.unit || defaults.unit;
    const scale = (right) => {
      const values = lines.filter((line) => line.right === right).flatMap((line) => line.points).filter(Boolean).map((point) => point[2]);
      const most = Math.max(...values, 0);
      const whole = unit(right) === 's' && most > 120 ? 60 : 1;
      return whole * nice((Math.max(most, defaults.max ?? 0, limit !== null && !right && most > limit / 3 ? limit : 0) || 1) / whole);
    };
    const tops = { false: scale(false), true: lines.some((line) => line.right) ? scale(true) : 1 };
    // Half a bar stands out on both sides.
    const inset = custom.drawStyle === 'bars' ? plotWidth / times.length / 2 : 0;
    const x = (at) => left + inset + (plotWidth - 2 * inset) * (at - range.from) / (range.to - range.from);
    const y = (value, right = false) => 6 + plotHeight * (1 - value / tops[right]);
    for (const step of [0, 0.25, 0.5, 0.75, 1]) {
      const top = tops.false;
      // Axes of whole numbers have no halves.
      if (defaults.decimals === 0 && defaults.unit === 'short' && (top * step) % 1 !== 0) continue;
      parts.push(`<path d="M${left} ${y(top * step)}H${left + plotWidth}" stroke="#25282e"/>`);
      parts.push(`<text x="${left - 5}" y="${y(top * step) + 4}" text-anchor="end">${shown(top * step, { unit: unit(false) })}</text>`);
      if (lines.some((line) => line.right)) parts.push(`<text x="${left + plotWidth + 5}" y="${y(top * step) + 4}">${shown(tops.true * step, { unit: unit(true) })}</text>`);
    }
    const every = Math.ceil((range.to - range.from) / 240) * 60;
    for (let at = Math.ceil(range.from / every) * every; at <= range.to; at += every) {
      if (x(at) > width - 16) continue;
      const clock = new Date(at * 1000).toISOString().slice(11, 16);
      parts.push(`<text x="${x(at)}" y="${height - 3}" text-anchor="middle">${clock}</text>`);
    }
    lines.forEach((line) => {
      const steps = custom.lineInterpolation === 'stepAfter';
      if (custom.drawStyle === 'bars' && !line.right) {
        const bar = Math.max(1, plotWidth / times.length - 1);
        for (const point of line.points.filter(Boolean)) {
          parts.push(`<rect x="${x(point[0]) - bar / 2}" y="${y(point[2], line.right)}" width="${bar}" height="${Math.max(0, y(point[1], line.right) - y(point[2], line.right))}" fill="${line.color}" fill-opacity="${custom.fillOpacity / 100}"/>`);
        }
        return;
      }
      for (const run of runs(line.points)) {
        const path = (index) => run.map((point, at) => {
          const [px, py] = [x(point[0]), y(point[index], line.right)];
          return at === 0 ? `${px} ${py}` : steps ? `H${px}V${py}` : `L${px} ${py}`;
        }).join('');
        const back = [...run].reverse().map((point, at) => {
          const [px, py] = [x(point[0]), y(point[1], line.right)];
          if (at === 0) return `L${px} ${py}`;
          return steps ? `V${py}H${px}` : `L${px} ${py}`;
        }).join('');
        parts.push(`<path d="M${path(2)}${back}Z" fill="${line.color}" fill-opacity="${custom.fillOpacity / 100}"/>`);
        parts.push(`<path d="M${path(2)}" fill="none" stroke="${line.color}" stroke-width="1.5"/>`);
        if (run.length === 1) parts.push(`<circle cx="${x(run[0][0])}" cy="${y(run[0][2], line.right)}" r="2" fill="${line.color}"/>`);
      }
    });
    if (limit !== null && limit <= tops.false) parts.push(`<path d="M${left} ${y(limit)}H${left + plotWidth}" stroke="#f2495c" stroke-dasharray="5 4"/>`);
    body.insertAdjacentHTML('beforeend', `<svg width="${width}" height="${height}">${parts.join('')}</svg>`);
    return false;
  },

  async 'state-timeline'(panel, body) {
    const lines = await seriesOf(panel);
    if (lines.length === 0) {
      body.append(empty(panel));
      return true;
    }
    const [width, left] = [body.clientWidth, 170];
    const high = Math.min(34, (body.clientHeight - 20) / lines.length);
    const x = (at) => left + (width - left - 8) * (at - range.from) / (range.to - range.from);
    const parts = lines.flatMap((line, number) => [
      `<text x="${left - 8}" y="${high * number + high / 2 + 4}" text-anchor="end">${line.name}</text>`,
      ...[...line.values.keys()].map((at) => `<rect x="${x(at)}" y="${high * number + high * 0.1}" width="${x(range.from + range.step) - x(range.from) + 0.5}" height="${high * 0.8}" fill="${color('red')}"/>`),
    ]);
    const every = Math.ceil((range.to - range.from) / 240) * 60;
    for (let at = Math.ceil(range.from / every) * every; at <= range.to; at += every) {
      parts.push(`<text x="${x(at)}" y="${body.clientHeight - 3}" text-anchor="middle">${new Date(at * 1000).toISOString().slice(11, 16)}</text>`);
    }
    body.insertAdjacentHTML('beforeend', `<svg width="${width}" height="${body.clientHeight}">${parts.join('')}</svg>`);
    return false;
  },
};

async function seriesOf(panel) {
  const lines = [];
  for (const target of panel.targets) {
    for (const { metric, values } of await query(target.expr, false)) {
      const numbers = values.map(([at, value]) => [Number(at), Number(value)]).filter(([, value]) => Number.isFinite(value));
      if (numbers.length > 0) lines.push({ name: legend(target.legendFormat, metric), values: new Map(numbers) });
    }
  }
  return lines;
}

function runs(points) {
  const all = [[]];
  for (const point of points) {
    if (point) all.at(-1).push(point);
    else if (all.at(-1).length > 0) all.push([]);
  }
  return all.filter((run) => run.length > 0);
}

function nice(value) {
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 8, 10].map((factor) => factor * size).find((top) => top >= value * 0.999);
}

function legends(lines) {
  return element('div', { className: 'legend' }, ...lines.map((line) => {
    const mark = element('i', {});
    mark.style.background = line.color;
    return element('span', {}, mark, line.name);
  }));
}

async function main() {
  const [dashboard, recording] = await Promise.all([
    fetch(`/dashboards/${asked.get('dashboard')}.json`).then((answer) => answer.json()),
    fetch('/recording').then((answer) => answer.json()),
  ]);
  range = { from: Number(asked.get('from') || 0), to: Number(asked.get('to') || recording.length), interval: recording.interval };
  range.step = recording.interval * Math.ceil((range.to - range.from) / recording.interval / 400);
  variables = {};
  const bar = document.querySelector('#bar');
  document.querySelector('h1').textContent = dashboard.title;
  for (const variable of dashboard.templating.list) {
    if (variable.type === 'datasource') {
      variables[variable.name] = 'default';
      continue;
    }
    if (variable.type === 'custom') {
      // All of them are times in seconds.
      const value = variables[variable.name] = asked.get(variable.name) || variable.current.value;
      bar.append(`${variable.label} `, element('b', { textContent: shown(Number(value), { unit: 's' }) }));
      continue;
    }
    const [, metric, label] = variable.query.query.match(/^label_values\((.+), *(\w+)\)$/);
    const values = (await query(`group by (${label}) (${metric})`, true)).map((series) => series.metric[label]).sort();
    variables[variable.name] = asked.get(variable.name) || values[0];
    bar.append(`${variable.label} `, element('b', { textContent: variables[variable.name] }));
  }
  for (const link of dashboard.links) bar.append(element('b', { textContent: `↗ ${link.title}` }));

  const grid = document.querySelector('#grid');
  const cell = grid.clientWidth / 24;
  let bottom = 0;
  const failed = [];
  const blank = [];
  let panels = dashboard.panels;
  if (asked.has('row')) {
    const first = panels.findIndex((panel) => panel.type === 'row' && panel.title === asked.get('row'));
    const next = panels.findIndex((panel, at) => panel.type === 'row' && at > first);
    panels = panels.slice(first, next < 0 ? undefined : next);
  }
  const top = asked.has('row') ? panels[0].gridPos.y : 0;
  for (const panel of panels) {
    const { x, w, h } = panel.gridPos;
    const y = panel.gridPos.y - top;
    const frame = element('div', { className: panel.type === 'row' ? 'row' : 'panel' });
    Object.assign(frame.style, { left: `${x * cell + 3}px`, top: `${y * 36}px`, width: `${w * cell - 6}px`, height: `${h * 36 - 6}px` });
    grid.append(frame);
    bottom = Math.max(bottom, (y + h) * 36);
    if (panel.type === 'row') {
      frame.textContent = panel.title;
      continue;
    }
    frame.append(element('div', { className: 'title', textContent: panel.title, title: panel.description || '' }));
    const body = element('div', { className: 'body' });
    frame.append(body);
    try {
      if (await draw[panel.type](panel, body, frame)) blank.push(panel.title);
    } catch (error) {
      failed.push(`${panel.title}: ${error.message}`);
      body.append(element('div', { className: 'error', textContent: error.message }));
    }
  }
  grid.style.height = `${bottom}px`;
  grid.dataset.failed = JSON.stringify(failed);
  grid.dataset.blank = JSON.stringify(blank);
}

main().catch((error) => {
  document.body.append(element('pre', { className: 'error', textContent: error.stack }));
  document.querySelector('#grid').dataset.failed = JSON.stringify([error.message]);
}).finally(() => { document.title = 'done'; });
