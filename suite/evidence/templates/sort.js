// The headings of a table with the class "sorts" are buttons that order its rows.
if (!window.sortsTables) {
  window.sortsTables = true;
  const text = (row, at) => row.cells[at].textContent.trim();
  const number = (row, at) => parseFloat(text(row, at).replace('\u2212', '-'));
  document.addEventListener('click', event => {
    const head = event.target.closest('table.sorts th');
    if (!head) return;
    const at = head.cellIndex, body = head.closest('table').tBodies[0], rows = [...body.rows];
    const numbers = rows.some(row => !isNaN(number(row, at)));
    const before = head.getAttribute('aria-sort');
    const first = numbers && !text(head.parentNode, at).includes('\u2193') ? 'descending' : 'ascending';
    const other = { ascending: 'descending', descending: 'ascending' };
    const order = before === 'none' ? first : other[before], sign = order === 'ascending' ? 1 : -1;
    const missing = row => numbers && isNaN(number(row, at));
    rows.sort((a, b) => missing(a) - missing(b) || sign * (numbers
      ? number(a, at) - number(b, at) || 0 : text(a, at).localeCompare(text(b, at))));
    for (const each of head.parentNode.cells) each.setAttribute('aria-sort', 'none');
    head.setAttribute('aria-sort', order);
    body.append(...rows);
  });
}
