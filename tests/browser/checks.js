({
  // What is wrong with the page, whatever it shows: an empty list if nothing is.
  trouble() {
    const found = [];
    const note = (words, text) => found.push(`${words}: ${String(text).slice(0, 120)}`);
    if (document.querySelector("script:not([src]), img[src=x]")) note("markup was parsed", "");
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const { data } = node;
      if (/[\u202a-\u202e\u2066-\u2069\u200b\x1b\x00-\x08]/.test(data)) note("invisible", data);
      if (data.length > 45000) note("long", data.length);
    }
    for (const name of ["title", "aria-label", "placeholder"]) {
      for (const it of document.querySelectorAll(`[${name}]`)) {
        if (/[\u202a-\u202e\x1b]/.test(it.getAttribute(name))) note("invisible in", name);
      }
    }
    const { scrollWidth, clientWidth } = document.documentElement;
    if (scrollWidth > clientWidth) {
      const isWide = (it) => !it.closest("nav") && it.getBoundingClientRect().right > clientWidth + 1;
      note("too wide", [...document.querySelectorAll("body *")].find(isWide)?.outerHTML);
    }
    return found;
  },

  // Where the focus is: "end" outside of the page, "hidden" if a person cannot see it.
  focus() {
    const it = document.activeElement;
    if (it === document.body) return "end";
    const rings = [it, it.closest(".editor, .attach")].filter(Boolean).map((each) => getComputedStyle(each));
    const isVisible = rings.some(({ outlineStyle, outlineWidth }) => outlineStyle !== "none" && parseFloat(outlineWidth) > 0);
    return isVisible ? it.tagName : `hidden: ${it.outerHTML.slice(0, 100)}`;
  },

  // Words whose colour is too near to the colour behind them (WCAG 2: 4.5 to 1).
  pale() {
    const channel = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    const parse = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);
    const light = (colour) => {
      const [red, green, blue] = colour.map((value) => channel(value / 255));
      return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const behind = (it) => {
      for (; it; it = it.parentElement) {
        const colour = parse(getComputedStyle(it).backgroundColor);
        if (colour.length === 3 || colour[3] === 1) return colour;
      }
      return [255, 255, 255];
    };
    const poor = [];
    for (const it of document.querySelectorAll("main *")) {
      const hasWords = [...it.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
      const counts = it.checkVisibility() && !it.closest("[disabled], [aria-disabled=true], [inert], textarea, option");
      if (!hasWords || !counts) continue;
      const [one, other] = [light(parse(getComputedStyle(it).color)), light(behind(it))];
      const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
      if (ratio < 4.5) poor.push(`${ratio.toFixed(1)} ${it.outerHTML.slice(0, 120)}`);
    }
    return poor;
  },
})
