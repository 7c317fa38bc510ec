"use strict";
(() => {
  const root = document.documentElement;
  window.addEventListener("error", (event) => { root.dataset.error = event.message; });

  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  const { groups } = JSON.parse(document.getElementById("data").textContent);
  if (!groups.length) { root.dataset.ready = "0"; return; }

  // What is shown; "#transcripts/<iteration>/<group>/tokens" in the address says the same.
  const state = { iteration: groups[groups.length - 1].iteration, group: 0, tokens: false };
  const $ = (id) => document.getElementById(id);

  // Text enters the page here only, and always as text.
  function el(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value);
    }
    for (const child of children.flat(Infinity)) {
      if (child !== null && child !== undefined) node.append(child);
    }
    return node;
  }

  const here = () => groups.filter((group) => group.iteration === state.iteration);
  const signed = (x) => (x < 0 ? "−" : "+") + Math.abs(x).toFixed(2);
  const numbers = (x) => Array.isArray(x) && x.length > 0 && x.every((n) => typeof n === "number");

  function plain(value) {
    if (value === null || value === undefined) return "none";
    if (typeof value === "boolean") return value ? "yes" : "no";
    if (numbers(value)) return value.join("·");
    if (Array.isArray(value)) return value.map(plain).join(", ");
    if (typeof value === "object") {
      return Object.entries(value).map(([key, item]) => `${key}: ${plain(item)}`).join(", ");
    }
    return String(value);
  }

  function facts(values) {
    return el("dl", { class: "facts" }, Object.entries(values).map(([key, value]) => [
      el("dt", null, key.replaceAll("_", " ")), el("dd", null, plain(value)),
    ]));
  }

  // Counts and values of items read best as a small table; any other observation as a list.
  function observation(seen) {
    if (seen && numbers(seen.counts) && numbers(seen.values)) {
      const row = (name, list) => el("tr", null, el("th", { scope: "row" }, name),
        list.map((n) => el("td", null, String(n))));
      return el("table", { class: "items" },
        el("thead", null, el("tr", null, el("th"),
          seen.counts.map((_, i) => el("th", { scope: "col" }, `item${i}`)))),
        el("tbody", null, row("units", seen.counts), row("worth each", seen.values)));
    }
    return facts(seen && typeof seen === "object" && !Array.isArray(seen) ? seen : { sees: seen });
  }

  function scenario(group) {
    return el("div", { class: "seats" },
      el("div", { class: "card" },
        el("h4", null, "Public", el("span", { class: "lock" }, "both seats see this")),
        facts(group.public),
        facts({ scenario: group.scenario, draw: group.draw })),
      group.roles.map((role, i) => el("div", { class: `card private c${i % 6}` },
        el("h4", null, role, el("span", { class: "lock" }, "private: only this seat saw it")),
        observation(group.private[role]))));
  }

  function speaker(name) {
    const match = /^(\w+):(.*?)(?:@(\d+))?$/.exec(name);
    if (!match) return name;
    return `${match[1]} · ${match[2]}${match[3] === undefined ? "" : ` v${match[3]}`}`;
  }

  function paid(rollout, roles) {
    return el("table", { class: "paid" }, el("tbody", null, roles.map((role, i) => {
      const { reward, failed, advantage, retries } = rollout.paid[role] || {};
      const scored = typeof reward === "number";
      const again = retries ? `, ${retries} sampled again` : "";
      return el("tr", { class: `c${i % 6}` },
        el("td", null, role,
          el("span", { class: "who" }, speaker(rollout.speakers[role] || "") + again)),
        el("td", { class: "num" }, scored ? `reward ${reward.toFixed(2)}` : "no reward",
          el("span", { class: "who" }, typeof advantage === "number"
            ? `advantage ${signed(advantage)}`
            : failed || "no vote, no update")));
    })));
  }

  function token([piece, segment, mask, logp]) {
    const text = piece.replaceAll("▁", " ").replaceAll("\n", "⏎");
    const attributes = { class: `tok ${mask ? "own" : segment === 2 ? "other" : "dim"}` };
    const node = el("span", attributes, text);
    if (mask) node.style.setProperty("--s", Math.min(1, -logp / 4).toFixed(2));
    const whose = mask ? "sampled, in the loss"
      : ["template", "own, not sampled", "counterpart"][segment] + ", masked";
    node.dataset.tip = mask
      ? `${whose} · log-prob ${logp.toFixed(3)} · probability ${Math.exp(logp).toFixed(3)}`
      : whose;
    return node;
  }

  function tokens(rollout, index, roles) {
    const speaking = rollout.turns[index] && rollout.turns[index].role;
    const order = [...roles].sort((a, b) => (b === speaking) - (a === speaking));
    const blocks = order.map((role) => {
      const list = (rollout.views[role] || {})[index];
      if (!list) return null;
      const sampled = list.filter((t) => t[2]);
      const mean = sampled.reduce((sum, t) => sum + t[3], 0) / sampled.length;
      const count = sampled.length
        ? `${sampled.length} of ${list.length} sampled, mean log-prob ${signed(mean)}`
        : `${list.length} tokens, none sampled`;
      return el("div", { class: `tokens c${roles.indexOf(role) % 6}` },
        el("span", { class: "as" }, `in ${role}'s context: ${count}`), list.map(token));
    }).filter(Boolean);
    return blocks.length ? blocks : [el("div", { class: "tokens" },
      el("span", { class: "as" }, "no local policy's tokens were kept for this turn"))];
  }

  // A button that opens and closes the tokens of a turn; they are built when first asked for.
  function peek(rollout, index, roles, label) {
    const panel = el("div", { hidden: "" });
    const button = el("button", { type: "button", class: "peek", "aria-expanded": "false" }, label);
    const show = (open) => {
      if (open && !panel.childNodes.length) panel.append(...tokens(rollout, index, roles));
      panel.hidden = !open;
      button.setAttribute("aria-expanded", String(open));
    };
    button.addEventListener("click", () => show(panel.hidden));
    if (state.tokens && index >= 0) show(true);
    return [button, panel];
  }

  function turn(rollout, index, roles) {
    const { role, text, action, valid, payload, error_code, flags, end } = rollout.turns[index];
    const seat = roles.indexOf(role);
    const items = numbers(payload) ? payload : payload && payload.items;
    const content = payload === null || payload === undefined ? null
      : el("span", { class: "act" }, plain(numbers(items) ? items : payload));
    const odd = [...(flags || []), ...(end === "stop" ? [] : [`ended by ${end}`])];
    const [button, panel] = peek(rollout, index, roles, "tokens");
    return el("div", { class: `turn c${seat % 6}${seat % 2 ? " right" : ""}${valid ? "" : " bad"}` },
      el("div", { class: "meta" }, el("span", null, role),
        el("span", { class: valid ? "badge" : "badge no" }, valid ? action : `malformed: ${error_code}`),
        content, button),
      el("div", { class: "bubble" }, text || " "),
      odd.length ? el("div", { class: "flags" }, odd.join(", ").replaceAll("_", " ")) : null,
      panel);
  }

  function rollout(one, roles) {
    const reason = one.end_reason.replaceAll("_", " ");
    const badge = el("span", { class: `badge ${one.success ? "yes" : "no"}` },
      `${one.success ? "✓" : "✗"} ${reason}${one.offender ? ` (${one.offender})` : ""}`);
    const [button, panel] = peek(one, -1, roles, "opening prompts");
    return el("article", { class: "rollout", "aria-label": `Rollout ${one.rollout}` },
      el("h3", null, `Rollout ${one.rollout}`, badge),
      paid(one, roles), el("p", { class: "opening" }, button), panel,
      one.turns.map((_, i) => turn(one, i, roles)),
      el("div", { class: "result-line" }, facts(one.facts)));
  }

  function chips(parent, options, chosen, choose) {
    parent.replaceChildren(...options.map(([value, label]) => el("button", {
      type: "button", class: "chip", "aria-pressed": String(value === chosen),
      onclick: () => { choose(value); render(true); },
    }, label)));
  }

  function render(moved) {
    const known = [...new Set(groups.map((group) => group.iteration))];
    chips($("iterations"), known.map((k) => [k, String(k)]), state.iteration,
      (k) => { state.iteration = k; state.group = Math.min(state.group, here().length - 1); });
    chips($("groups"), here().map((group, i) => {
      const won = group.rollouts.filter((one) => one.success).length;
      return [i, `${i + 1}: ${won} of ${group.rollouts.length} succeed`];
    }), state.group, (i) => { state.group = i; });
    const group = here()[state.group];
    $("tokens").setAttribute("aria-pressed", String(state.tokens));
    $("scenario").replaceChildren(scenario(group));
    $("rollouts").replaceChildren(...group.rollouts.map((one) => rollout(one, group.roles)));
    if (moved) {
      const where = `#transcripts/${state.iteration}/${state.group}${state.tokens ? "/tokens" : ""}`;
      history.replaceState(null, "", where);
    }
    root.dataset.ready = String(group.rollouts.length);
  }

  function follow() {
    const [, iteration, group, shown] = /^#transcripts\/(\d+)\/(\d+)(\/tokens)?/.exec(location.hash) || [];
    if (iteration === undefined || !groups.some((g) => g.iteration === Number(iteration))) return;
    state.iteration = Number(iteration);
    state.group = Math.min(Number(group), here().length - 1);
    state.tokens = Boolean(shown);
  }

  $("tokens").addEventListener("click", () => { state.tokens = !state.tokens; render(true); });
  window.addEventListener("hashchange", () => { follow(); render(false); });
  const tip = $("tip");
  document.addEventListener("mouseover", (event) => {
    const over = event.target.closest && event.target.closest("[data-tip]");
    tip.hidden = !over;
    if (!over) return;
    tip.textContent = over.dataset.tip;
    const box = over.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${box.top > 60 ? box.top - tip.offsetHeight - 6 : box.bottom + 6}px`;
  });
  follow();
  render(false);
  if (location.hash.startsWith("#transcripts/")) $("transcripts").scrollIntoView();
})();
