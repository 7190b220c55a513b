/** What the hub is asked, and what it answers. */

const PATIENCE = 20_000; // milliseconds

/** An answer that is none: its message is for people, its status 0 where the hub does not answer at all. */
export class Refusal extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/**
 * Return the JSON at a path of the hub; what is left empty in the query is not asked.
 * @throws {Refusal} for every answer that is none, and where there is no answer.
 */
export async function ask(path, query = {}, signal = null) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined) words.append(name, each);
    }
  }
  const late = AbortSignal.timeout(PATIENCE);
  let answer;
  try {
    answer = await fetch(words.size ? `${path}?${words}` : path, {
      headers: { Accept: "application/json" },
      signal: signal ? AbortSignal.any([signal, late]) : late,
    });
    if (answer.ok) return await answer.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refusal("the hub does not answer", 0);
  }
  let said = "";
  try {
    said = (await answer.json()).error ?? "";
  } catch {
    // an answer without words
  }
  throw new Refusal(said || `the hub answers ${answer.status}`, answer.status);
}

/** Return the path of a run. */
export const pathOf = (run) => `/api/runs/${encodeURIComponent(run)}`;
