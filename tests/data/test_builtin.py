from elektron.data.builtin import _paragraphs, _prose, python_docs


def test_prose_is_kept_and_the_rest_is_not():
    docstring = """Return the :class:`Thing` whose name is ``name`` in the `manual <http://x>`_ of all things.

    >>> thing("a")
    1

    x : int
        a = {b: c}

    - A list item that is a whole sentence with enough words in it.

    Short line."""
    assert list(_prose(docstring)) == [
        "Return the Thing whose name is name in the manual of all things.",
        "A list item that is a whole sentence with enough words in it.",
    ]


def test_source_is_read_and_not_run(tmp_path):
    path = tmp_path / "module.py"
    sentence = "This sentence is long enough to be taken for prose by anyone."
    path.write_text(f'"""{sentence}"""\nraise SystemExit\nclass A:\n    def b(self):\n        """{sentence}"""\n')
    assert _paragraphs(path) == [sentence, sentence]
    path.write_text("print 'python 2'")
    assert _paragraphs(path) == []


def test_there_are_megabytes_of_it_and_no_paragraph_twice():
    documents = list(python_docs())
    assert sum(map(len, documents)) > 3_000_000
    paragraphs = [paragraph for document in documents for paragraph in document.split("\n")]
    assert len(paragraphs) == len(set(paragraphs))
    assert documents == list(python_docs())
