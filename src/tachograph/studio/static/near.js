/** Names that are looked for: by a part, by a regular expression, and the nearest one where there is none. */

/** Return what tells whether a name is looked for: by parts of it, or by a regular expression between slashes. */
export function matcher(text) {
  const found = /^\/(.+?)\/?$/s.exec(text.trim());
  if (found) {
    try {
      const expression = new RegExp(found[1], "i");
      return { holds: (name) => expression.test(name), problem: "" };
    } catch (error) {
      return { holds: () => true, problem: error.message };
    }
  }
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return { holds: (name) => words.every((word) => name.toLowerCase().includes(word)), problem: "" };
}

const pairs = (name) => new Set([...` ${name.toLowerCase()}`].map((_, place, letters) => letters.slice(place, place + 2).join("")));

/** Return the name with the most pairs of letters in common; null where none has any. */
export function nearest(wanted, names) {
  const own = pairs(wanted);
  const likeness = (name) => {
    const other = pairs(name);
    return (2 * [...own].filter((pair) => other.has(pair)).length) / (own.size + other.size);
  };
  const found = names.map((name) => [likeness(name), name]).sort((one, other) => other[0] - one[0])[0];
  return found && found[0] > 0 ? found[1] : null;
}
