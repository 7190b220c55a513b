/** Elements made from data: every text is a text node, so that no name can be markup. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Return a new element.
 * @param {string} tag - its name; "svg:rect" makes one of SVG.
 * @param {Object} properties - attributes; `text`, `on` (listeners by event) and `style` (CSS properties) are special,
 *   and what is null, undefined or false is left out.
 * @param {...(Node|string|null)} children - what it holds.
 */
export function element(tag, properties = {}, ...children) {
  const made = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") made.textContent = value;
    else if (name === "on") for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
    else if (name === "style") for (const [key, each] of Object.entries(value)) made.style.setProperty(key, each);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((each) => each !== null && each !== undefined));
  return made;
}

/** Put children in place of what an element holds. */
export function fill(parent, ...children) {
  parent.replaceChildren(...children.filter((each) => each !== null && each !== undefined));
  return parent;
}

/** Set an element's text where it differs: nothing is laid out again without need. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
