"""The words of a small world, as a tokenizer for the tiny agent that lives in it."""
import re

PAD, END, UNKNOWN = "<pad>", "<end>", "<unk>"


def tokenizer_for(texts, phrases, kinds, marks=""):
    """A word-level tokenizer for a small world: fixed phrases and entities ("mug 1") are one token each; a, the, some, and, in,
    on, WebShop's [SEP], the zeros of whole dollars and punctuation, all but `marks`, are dropped. Episodes become two to three
    times shorter, and copying an entity is copying one token. Words that `texts` do not have are spelled, letter by letter
    (WordPiece), so nothing is unknown.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    dropped = rf"\[sep\]|\.0+\b|[^\w\s\[\]<>'{re.escape(marks)}-]|\b(an?|the|some|and|in|on)\b"
    clean = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(Regex(dropped), " "),
                                  normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()])
    texts = {clean.normalize_str(t) for t in texts}
    phrases = sorted({clean.normalize_str(p) for p in phrases} - {""}, key=lambda p: (-len(p), p))
    highest = {}                                                  # kind -> its highest number in the texts
    for kind, number in {m for t in texts for m in re.findall(rf"\b({'|'.join(kinds)}) (\d+)\b", t) if kinds}:
        highest[kind] = max(int(number), highest.get(kind, 0))
    entities = [rf"{kind} (?:{'|'.join(map(str, range(n, 0, -1)))})" for kind, n in sorted(highest.items())]
    fixed = [rf"(?<!\w){re.escape(p)}" + r"(?!\w)" * p[-1].isalnum() for p in phrases] + [rf"(?<!\w){e}(?!\w)" for e in entities]
    pattern = "|".join(fixed + [r"\w+", r"[^\w\s]"])
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    words = {word for t in texts for word, _ in split.pre_tokenize_str(t)}
    numbered = [f"{kind} {n}" for kind in sorted(highest) for n in range(1, highest[kind] + 1)]
    letters = [chr(c) for c in range(33, 127)]
    vocabulary = [PAD, END, UNKNOWN, *phrases, *numbered, *sorted(highest), *map(str, range(100)), *sorted(words), *letters,
                  *("##" + c for c in [" ", *letters])]
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(dict.fromkeys(vocabulary))}, unk_token=UNKNOWN,
                                           max_input_chars_per_word=10_000))
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = clean, split, decoders.WordPiece("##", cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, unk_token=UNKNOWN)
