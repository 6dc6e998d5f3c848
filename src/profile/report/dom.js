// Building the page. Text reaches it as text nodes only, so that no name in a model can become markup.

/** An element; attributes that are undefined, null or false are left out, children may be nodes or text. */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.filter((child) => child !== undefined && child !== null));
  return node;
}

const list = (x) => (Array.isArray(x) ? x.filter((item) => item !== null && item !== undefined) : []);
const record = (x) => (x && typeof x === 'object' ? x : {});

let lastId = 0;
const freshId = () => `id${++lastId}`;

function section(title, ...children) {
  const id = title.toLowerCase().replace(/[^a-z]+/g, '-');
  return el('section', {id, 'aria-labelledby': `${id}-title`}, el('h2', {id: `${id}-title`}, title), ...children);
}

/** A term with its value and, smaller, what puts the value in proportion. */
function fact(term, value, note) {
  return el('div', {}, el('dt', {}, term), el('dd', {}, value, note ? el('small', {}, note) : null));
}

/** A bar inside a table cell. It repeats the cell's figure, so it stays out of the way of screen readers. */
function cellBar(share) {
  const bar = el('span', {class: 'bar', 'aria-hidden': 'true'}, el('span'));
  bar.firstChild.style.width = `${Math.min(Math.max(share, 0), 1) * 100}%`;
  return bar;
}

/** The name of a bound with the mark that the charts use for it. */
function boundLabel(bound) {
  return bound ? el('span', {class: 'bound'}, boundMark(bound), String(bound)) : DASH;
}

/** A name that breaks after its slashes, before it breaks anywhere else. */
const breakable = (text) => text.split(/(?<=\/)/).flatMap((part, i) => (i ? [el('wbr'), part] : [part]));

/** A scrolling frame: on a phone a wide table moves inside it and the page stays still. */
function scroller(label, child) {
  return el('div', {class: 'scroll', role: 'region', tabindex: '0', 'aria-label': label}, child);
}

const compare = (a, b) => (typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b), 'en', {numeric: true}));

/** `rows` by one column; rows without a value come last in both directions. */
function sorted(rows, column, descending) {
  const known = (row) => column.value(row) !== undefined && column.value(row) !== null;
  const order = (a, b) => compare(column.value(a), column.value(b)) * (descending ? -1 : 1);
  return [...rows.filter(known).sort(order), ...rows.filter((row) => !known(row))];
}

/**
 * A table that shows the first rows and the rest on demand, with a filter box when it is long.
 * columns: {name, value(row) to sort by, show(row) for the cell, numeric, bar(row) from 0 to 1}; the first names the row.
 * detail(row) makes what opens below a row; it runs when the row is opened and never before.
 */
class DataTable {
  constructor({caption, columns, rows, sort, descending = false, limit = 25, searchText, detail}) {
    // A column that has nothing to show in any row is left out.
    this.columns = columns.filter((column, i) => i === 0 || rows.some((row) => ![undefined, null].includes(column.value(row))));
    Object.assign(this, {rows, descending, limit, detail, searchText: searchText || columns[0].value});
    this.sort = this.columns.find((column) => column.name === sort);
    this.body = el('tbody');
    this.heads = this.columns.map((column) => this.head(column));
    this.status = el('p', {class: 'status', role: 'status'});
    this.more = el('button', {type: 'button', class: 'more'});
    this.more.addEventListener('click', () => this.update({limit: this.limit === Infinity ? limit : Infinity}));
    const table = el('table', {}, el('caption', {}, caption), el('thead', {}, el('tr', {}, ...this.heads)), this.body);
    this.node = el('div', {class: 'table'}, this.filterBox(caption, limit), scroller(caption, table),
      el('div', {class: 'below'}, this.status, this.more));
    this.update({});
  }

  filterBox(caption, limit) {
    this.filter = '';
    if (this.rows.length <= limit) return null;
    const id = freshId();
    const box = el('input', {type: 'search', id, autocomplete: 'off', spellcheck: 'false', 'aria-label': `Filter: ${caption}`});
    box.addEventListener('input', () => this.update({filter: box.value.toLowerCase()}));
    return el('p', {class: 'filter'}, el('label', {for: id}, 'Filter '), box);
  }

  head(column) {
    const button = el('button', {type: 'button'}, column.name);
    button.addEventListener('click', () => {
      // Figures are mostly asked for from the largest down, names from the first on.
      const descending = this.sort === column ? !this.descending : !!column.numeric;
      this.update({sort: column, descending});
    });
    return el('th', {scope: 'col', class: column.numeric && 'number'}, button);
  }

  update(change) {
    Object.assign(this, change);
    const found = this.rows.filter((row) => String(this.searchText(row)).toLowerCase().includes(this.filter));
    const ordered = this.sort ? sorted(found, this.sort, this.descending) : found;
    const shown = ordered.slice(0, this.limit);
    this.body.replaceChildren(...shown.map((row) => this.row(row)));
    this.heads.forEach((head, i) => {
      const active = this.columns[i] === this.sort;
      head.setAttribute('aria-sort', active ? (this.descending ? 'descending' : 'ascending') : 'none');
    });
    const short = found.length < this.rows.length || shown.length < found.length;
    this.status.textContent = short ? `${count(shown.length)} of ${count(this.rows.length)} shown` : '';
    this.more.textContent = this.limit === Infinity ? 'Show fewer' : `Show all ${count(found.length)}`;
    this.more.hidden = this.limit !== Infinity && found.length <= this.limit;
    // A search that leaves one row is a question about that row.
    if (this.detail && this.filter && shown.length === 1) this.body.querySelector('button').click();
  }

  row(row) {
    const cells = this.columns.map((column, i) => this.cell(column, row, i === 0));
    const line = el('tr', {}, ...cells);
    if (this.detail) this.makeOpenable(line, cells[0], row);
    return line;
  }

  cell(column, row, first) {
    const value = column.show ? column.show(row) : column.value(row);
    const cell = el(first ? 'th' : 'td', {scope: first && 'row', class: column.numeric && 'number', 'data-label': first ? null : column.name});
    if (value === undefined || value === null || value === DASH) cell.classList.add('empty');
    cell.append(...(typeof value === 'string' && !column.numeric ? breakable(value) : [value ?? DASH]));
    if (column.bar) {
      cell.classList.add('barred');
      cell.append(cellBar(column.bar(row)));
    }
    return cell;
  }

  makeOpenable(line, cell, row) {
    const id = freshId();
    const button = el('button', {type: 'button', class: 'open', 'aria-expanded': 'false', 'aria-controls': id}, ...cell.childNodes);
    cell.replaceChildren(button);
    button.addEventListener('click', () => {
      const open = button.getAttribute('aria-expanded') === 'true';
      button.setAttribute('aria-expanded', String(!open));
      if (open) line.nextSibling.remove();
      else line.after(el('tr', {class: 'detail', id}, el('td', {colspan: this.columns.length}, el('div', {}, this.detail(row)))));
      redrawAll();
    });
  }
}
