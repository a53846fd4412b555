r"""Grading of mathematical answers: reads LaTeX, compares exactly or to many digits, within fixed budgets.

The way of an answer, from response to verdict. A stage imports only stages above it; `make lint` checks this.

    stage     module         what it does                         with
    extract   verifiers.extract  (outside this package: response -> text of the box)
    tokenize  tokens         text -> tokens
    parse     parser         tokens -> tree of `nodes`            cursor, literals, words
    read      answer         text -> tree, unit and words         units, letters, texts
    expand    shorthand      a \pm b -> both values, + C          trees
    evaluate  arithmetic     tree -> fraction or digits           numbers, quadrature
              algebra        tree -> sympy and back, asked last   costs
              substitution   operation -> its value               scalars
    compare   comparison     two trees -> equal or not, by shape  scalars, marks, trees
                             equations, inequalities, intervals   relations, regions, solutions
    refuse    operations     finds an operation left undone
    verdict   verifier       runs the stages, keeps verdicts

`trees` asks and changes any tree; evaluation and comparison see trees only, never text."""
