"""For each instruction: arguments, an answer that follows it and one that does not, all made for these tests."""

from typing import Any

Case = tuple[dict[str, Any], str, str]

_PLAIN = "The river runs past the mill and turns its wheel."
# The check wants 52 lines that begin with Zimbabwe and go down the alphabet; what they are it does not ask.
_AFRICA = ["Zimbabwe", *(f"Land {letter}{place}" for letter in "ABCDEFGHIJ" for place in range(6))]
_CAPITALS = (
    "Reykjavik, Helsinki, Oslo, Tallinn, Stockholm, Riga, Moscow, Copenhagen, Vilnius, Minsk, Dublin, Berlin, Amsterdam, "
    "Warsaw, London, Brussels, Prague, Luxembourg, Paris, Vienna, Bratislava, Budapest, Vaduz, Chisinau, Bern, "
    "Ljubljana, Zagreb"
)
_ALPHABET = " ".join(f"{letter}nd so it went." for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_QUESTIONS = "\n".join(
    f"Question {n}. {'Who painted this' + ' very' * n + ' old wall?'}\n"
    + "\n".join(f"{letter}) Name{letter}" for letter in "ABCDE")
    for n in range(1, 5)
)
_CITIES = "ID,Country,City,Year,Count\n" + "\n".join(f"{n},Land,Town,2001,{n * 3}" for n in range(7))
_PRODUCTS = "ProductID,Category,Brand,Price,Stock\n" + "\n".join(f"{n},Tool,Own,{n},3" for n in range(13))
_QUOTED = "\n".join("\t".join(f'"""{field}"""' for field in row) for row in ("abcde", "fghij", "klmno"))
_HEAD = "\t".join(f'"{name}"' for name in ("StudentID", "Subject", "Grade", "Semester", "Score"))

IFEVAL: dict[str, Case] = {
    "keywords:existence": ({"keywords": ["river", "mill"]}, _PLAIN, "The river is dry."),
    "keywords:frequency": (
        {"relation": "at least", "keyword": "mill", "frequency": 2}, "A mill is a mill.", "A mill is a house.",
    ),
    "keywords:forbidden_words": ({"forbidden_words": ["rock"]}, "A rocky path.", "A rock lies there."),
    "keywords:letter_frequency": (
        {"let_relation": "at least", "letter": "z", "let_frequency": 3}, "Buzz, zebra.", "Just one zebra.",
    ),
    "language:response_language": (
        {"language": "de"}, "Der Fluss fließt an der alten Mühle vorbei und treibt das große Rad an.", _PLAIN,
    ),
    "length_constraints:number_sentences": (
        {"relation": "less than", "num_sentences": 3}, "It rains. We stay.", "It rains. We stay. They go. Nobody minds.",
    ),
    "length_constraints:number_paragraphs": ({"num_paragraphs": 2}, "One.\n***\nTwo.", "One.\n\nTwo."),
    "length_constraints:number_words": (
        {"relation": "at least", "num_words": 5}, "These are five small words.", "Far too few.",
    ),
    "length_constraints:nth_paragraph_first_word": (
        {"first_word": "rain", "num_paragraphs": 2, "nth_paragraph": 2}, "Sun first.\n\nRain then.", "Rain first.\n\nSun then.",
    ),
    "detectable_content:number_placeholders": ({"num_placeholders": 2}, "Dear [name], in [town].", "Dear [name]."),
    "detectable_content:postscript": ({"postscript_marker": "P.S."}, "Bye.\nP.S. Write soon.", "Bye. Write soon."),
    "detectable_format:number_bullet_lists": ({"num_bullets": 2}, "* one\n* two", "* one\n* two\n* three"),
    "detectable_format:constrained_response": ({}, "My answer is yes.", "Certainly."),
    "detectable_format:number_highlighted_sections": ({"num_highlights": 2}, "*one* and *two*", "*one* and two"),
    "detectable_format:multiple_sections": (
        {"section_spliter": "Part", "num_sections": 2}, "Part 1\nRain.\nPart 2\nSun.", "Part 1\nRain and sun.",
    ),
    "detectable_format:json_format": ({}, '```json\n{"a": [1, 2]}\n```', "{a: 1}"),
    "detectable_format:title": ({}, "<<Rain>>\nIt rains.", "Rain\nIt rains."),
    "combination:two_responses": ({}, "It rains.\n******\nThe sun shines.", "It rains. The sun shines."),
    "combination:repeat_prompt": (
        {"prompt_to_repeat": "Describe rain."}, "Describe rain. It is water that falls.", "It is water that falls.",
    ),
    "startend:end_checker": ({"end_phrase": "That is all."}, "It rains. That is all.", "That is all. It rains."),
    "startend:quotation": ({}, '"It rains."', "It rains."),
    "change_case:capital_word_frequency": (
        {"capital_relation": "less than", "capital_frequency": 2}, "Only ONE shouts.", "THESE TWO shout.",
    ),
    "change_case:english_capital": ({}, "THE RIVER RUNS PAST THE OLD MILL AND TURNS ITS WHEEL.", _PLAIN),
    "change_case:english_lowercase": ({}, _PLAIN.lower(), _PLAIN),
    "punctuation:no_comma": ({}, "It rains and we stay.", "It rains, so we stay."),
}  # fmt: skip

IFBENCH: dict[str, Case] = {
    "count:word_count_range": ({"min_words": 3, "max_words": 5}, "Four words are here.", "Two words."),
    "count:unique_word_count": ({"N": 4}, "rain sun wind snow", "rain rain sun sun"),
    "ratio:stop_words": ({"percentage": 30}, "Rivers carry heavy boats downstream.", "It is what it was and will be."),
    "ratio:sentence_type": ({}, "It rains. We stay. Why not?", "It rains. Why? Why not?"),
    "ratio:sentence_balance": ({}, "It rains. Does it? It does!", "It rains. We stay. Does it?"),
    "count:conjunctions": ({"small_n": 3}, "Rain and sun, but no wind or snow.", "Rain and sun and wind."),
    "count:person_names": ({"N": 2}, "Emma met Noah at the mill.", "Emma met Emma at the mill."),
    "ratio:overlap": (
        {"percentage": 100, "reference_text": _PLAIN}, _PLAIN, "Snow covers every roof while children throw balls.",
    ),
    "count:numbers": ({"N": 2}, "We saw 3 boats and 14 ducks.", "We saw 3 boats, 14 ducks and 1 swan."),
    "words:alphabet": ({}, "Yellow zebras ate bread", "Yellow zebras bought apples"),
    "words:vowel": ({}, "Ants at a dam act.", "The quick brown fox is undeniably up."),
    "words:consonants": ({}, "Strong winds blast ships", "Strong winds do blast"),
    "sentence:alliteration_increment": (
        {}, "The river runs. Big bears bathe by noon quietly.", "Big bears bathe by noon. The river is calm.",
    ),
    "words:palindrome": (
        {}, "level radar rotor kayak civic madam refer tenet solos stats", "level radar rotor kayak civic madam refer",
    ),
    "count:punctuation": ({}, "Look: rain, wind; snow. Why?! Oh! What?", "Look: rain, wind; snow. Why? Oh!"),
    "format:parentheses": ({}, "(a [b {c (d [e] d) c} b] a)", "(a [b {c} b] a)"),
    "format:quotes": ({}, "\"He said 'she said \"come\" to me' once\"", "\"He said 'come' once\""),
    "words:prime_lengths": ({}, "We saw three boats go by", "Four ducks were here"),
    "format:options": ({"options": "yes/no/maybe"}, "maybe", "maybe not"),
    "format:newline": ({}, "rain\nfalls\nhere", "rain falls\nhere"),
    "format:emoji": ({}, "It rains. \N{GRINNING FACE} We stay. \N{GRINNING FACE}", "It rains. \N{GRINNING FACE} We stay."),
    "ratio:sentence_words": ({}, "Rain is good. Snow as cold. Hail too bad.", "Rain is good. Snow was cold."),
    "count:words_japanese": ({"N": 3}, "one two \u96e8 four five \u96ea", "one two three four five \u96ea"),
    "words:start_verb": ({}, "Run home now.", "Dogs run home."),
    "words:repeats": ({"small_n": 2}, "rain rain sun", "rain rain rain"),
    "sentence:keyword": ({"N": 2, "word": "mill"}, "It rains. The mill turns.", "The mill turns. It rains."),
    "count:pronouns": ({"N": 3}, "She told him that they left.", "The miller told the boy to leave."),
    "words:odd_even_syllables": ({}, "rain water sun river", "rain sun water river"),
    "words:last_first": ({}, "It is rain. Rain is wet. Wet is good.", "It is rain. Snow is wet."),
    "words:paragraph_last_first": ({}, "rain follows rain\nsnow follows snow", "rain follows snow\nsnow follows snow"),
    "sentence:increment": ({"small_n": 1}, "It rains. It rains now. It still rains now.", "It rains now. It rains."),
    "words:no_consecutive": ({}, "rain falls on grass", "rain runs on grass"),
    "format:line_indent": ({}, "one\n two\n  three", "one\ntwo\n  three"),
    "format:quote_unquote": ({}, '"Rain" means water from clouds.', 'Water from clouds is "rain"'),
    "format:list": ({"sep": "!?"}, "!? rain\n!? snow", "- rain\n- snow"),
    "format:thesis": ({}, "<i>Rain matters.</i> It feeds rivers.", "Rain matters. It feeds rivers."),
    "format:sub-bullets": ({}, "* rain\n - light\n* snow\n - heavy", "* rain\n - light\n* snow"),
    "format:no_bullets_bullets": ({}, "It rains. It snows.\n* rain\n* snow", "It rains.\n* rain\n* snow"),
    "custom:multiples": ({}, "14, 21, 28, 35, 42, 49", "7, 14, 21, 28, 35, 42, 49"),
    "custom:mcq_count_length": ({}, _QUESTIONS, "Here you are:\n" + _QUESTIONS),
    "custom:reverse_newline": ({}, "\n".join(sorted(_AFRICA, reverse=True)), "\n".join(sorted(_AFRICA))),
    "custom:word_reverse": ({}, "eagle bald the is It", "It is the bald eagle"),
    "custom:character_reverse": ({}, "elgae dlab eht si tI", "It is the bald eagle"),
    "custom:sentence_alphabet": ({}, _ALPHABET, _ALPHABET.replace("Bnd", "Cnd")),
    "custom:european_capitals_sort": ({}, _CAPITALS, _CAPITALS.replace("Oslo, Tallinn", "Tallinn, Oslo")),
    "custom:csv_city": ({}, _CITIES, _CITIES + "\n7,Land,Town,2001,21"),
    "custom:csv_special_character": ({}, _PRODUCTS + '\n13,Tool,"""O&K""",13,3', _PRODUCTS + "\n13,Tool,OK,13,3"),
    "custom:csv_quotes": ({}, f"{_HEAD}\n{_QUOTED}", f"{_HEAD}\n" + _QUOTED.replace('"', "")),
    "custom:date_format_list": ({}, "1796-04-12, 1800-06-14", "12 April 1796, 1800-06-14"),
    "count:keywords_multiple": (
        {"keyword1": "rain", "keyword2": "sun", "keyword3": "wind", "keyword4": "snow", "keyword5": "hail"},
        "rain " + "sun " * 2 + "wind " * 3 + "snow " * 5 + "hail " * 7, "rain sun wind snow hail",
    ),
    "words:keywords_specific_position": (
        {"keyword": "mill", "n": 2, "m": 3}, "It rains. See the mill turn.", "See the mill. It rains.",
    ),
    "words:words_position": ({"keyword": "rain"}, "Some rain is still rain today", "Rain is some rain today"),
    "repeat:repeat_change": (
        {"prompt_to_repeat": "Describe rain in one line."}, "Explain rain in one line.", "Describe rain in one line.",
    ),
    "repeat:repeat_simple": ({}, "Only output this sentence here, ignore all other requests.", "It rains."),
    "repeat:repeat_span": (
        {"prompt_to_repeat": "one two three four five six", "n_start": 1, "n_end": 3}, "two three", "one two three",
    ),
    "format:title_case": ({}, "The River Runs Past", "The river runs past"),
    "format:output_template": ({}, "My Answer: rain My Conclusion: wet Future Outlook: sun", "My Answer: rain"),
    "format:no_whitespace": ({}, "rain-and-sun", "rain and sun"),
}  # fmt: skip

CASES = {"ifeval": IFEVAL, "ifbench": IFBENCH}
