"use strict";
document.querySelectorAll("table.sortable").forEach(function (table) {
  table.querySelectorAll("thead th").forEach(function (head, column) {
    var button = document.createElement("button");
    button.type = "button";
    while (head.firstChild) button.appendChild(head.firstChild);
    head.appendChild(button);
    button.addEventListener("click", function () {
      var up = head.getAttribute("aria-sort") !== "ascending";
      table.querySelectorAll("thead th").forEach(function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      var body = table.tBodies[0];
      function key(row) {
        var cell = row.cells[column];
        var text = cell.getAttribute("data-value");
        if (text === null) text = cell.textContent.trim();
        var value = text === "" ? NaN : Number(text);
        return isNaN(value) ? text.toLowerCase() : value;
      }
      Array.from(body.rows).map(function (row) { return [key(row), row]; }).sort(function (a, b) {
        // Missing values stay last in both directions.
        if (a[0] === "" || b[0] === "") return (a[0] === "") - (b[0] === "");
        var order = typeof a[0] === typeof b[0] ? (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0)
          : typeof a[0] === "number" ? -1 : 1;
        return up ? order : -order;
      }).forEach(function (pair) { body.appendChild(pair[1]); });
    });
  });
});
document.querySelectorAll(".controls[data-for]").forEach(function (controls) {
  var table = document.getElementById(controls.getAttribute("data-for"));
  var count = controls.querySelector("output");
  controls.hidden = false;
  function apply() {
    var wanted = {};
    var text = "";
    controls.querySelectorAll("select").forEach(function (select) {
      if (select.value) wanted[select.name] = select.value;
    });
    var input = controls.querySelector("input");
    if (input) text = input.value.toLowerCase();
    var shown = 0;
    table.querySelectorAll("tr[data-row]").forEach(function (row) {
      var keep = Object.keys(wanted).every(function (name) {
        return row.getAttribute("data-" + name) === wanted[name];
      }) && (!text || row.textContent.toLowerCase().indexOf(text) >= 0);
      row.hidden = !keep;
      if (keep) shown += 1;
    });
    Array.from(table.tBodies).forEach(function (body) {
      var rows = Array.from(body.querySelectorAll("tr[data-row]"));
      body.hidden = rows.length > 0 && rows.every(function (row) { return row.hidden; });
    });
    count.textContent = shown + " of " + table.querySelectorAll("tr[data-row]").length + " shown";
  }
  controls.addEventListener("input", apply);
  apply();
});
