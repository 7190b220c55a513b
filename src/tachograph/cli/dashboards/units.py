"""Units as Grafana has them."""

from __future__ import annotations

# UCUM (and the words that people write for it) to Grafana's ids: grafana/grafana-data, valueFormats/categories.ts.
_IDS = {
    "1": "none",
    "%": "percent",
    "ns": "ns",
    "us": "µs",
    "ms": "ms",
    "s": "s",
    "min": "m",
    "h": "h",
    "d": "d",
    "By": "bytes",
    "KiBy": "kbytes",
    "MiBy": "mbytes",
    "GiBy": "gbytes",
    "TiBy": "tbytes",
    "kBy": "deckbytes",
    "KBy": "deckbytes",
    "MBy": "decmbytes",
    "GBy": "decgbytes",
    "TBy": "dectbytes",
    "bit": "bits",
    "By/s": "binBps",
    "KiBy/s": "KiBs",
    "MiBy/s": "MiBs",
    "GiBy/s": "GiBs",
    "kBy/s": "KBs",
    "KBy/s": "KBs",
    "MBy/s": "MBs",
    "GBy/s": "GBs",
    "bit/s": "binbps",
    "m": "lengthm",
    "mm": "lengthmm",
    "km": "lengthkm",
    "mg": "massmg",
    "g": "massg",
    "kg": "masskg",
    "t": "masst",
    "K": "kelvin",
    "Cel": "celsius",
    "A": "amp",
    "mA": "mamp",
    "V": "volt",
    "mV": "mvolt",
    "mW": "mwatt",
    "W": "watt",
    "kW": "kwatt",
    "J": "joule",
    "Pa": "pressurepa",
    "Hz": "hertz",
    "kHz": "rotkhz",
    "MHz": "rotmhz",
    "GHz": "rotghz",
    "rad": "radian",
    "deg": "degree",
    "dB": "dB",
}


def grafana_unit(units: str | None) -> str:
    """Return Grafana's id for units as a scale names them; words that are no unit stand behind the number.

    Args:
        units: UCUM, an annotation such as ``{epoch}``, any text, or nothing.
    """
    if not units:
        return "short"
    found = _IDS.get(units)
    if found is not None:
        return found
    words = units.replace("{", "").replace("}", "").strip()
    return f"suffix:{words}" if words else "short"
